# What of a deployment is on a host, as lines of a key, a tab and a value. Changes nothing.
# Arguments: the installation, how many directories, the directories, how many files, the files.
say() { printf '%s\t%s\n' "$1" "$2"; }
top=$1
say user "$(id -un)"
identity=$(head -n 1 "$top/cluster" 2>/dev/null)
say identity "$identity"
# Two files stay with state that is kept when all else is removed.
if [ -n "$(ls -A "$top" 2>/dev/null | grep -vx -e cluster -e made)" ]; then say installed yes; fi
say current "$(basename "$(readlink "$top/current" 2>/dev/null)" 2>/dev/null)"
for release in "$top"/versions/*; do
    case $release in *.new) continue ;; esac
    [ -d "$release" ] || continue
    name=$(basename "$release")
    say release "$name"
    while IFS= read -r line; do say "release.$name" "$line"; done 2>/dev/null <"$release/release"
done
holds() {
    if [ ! -d "$1" ]; then
        say gone "$1"
        return
    fi
    if [ -z "$(ls -A "$1" 2>/dev/null | grep -vx 'lost+found')" ]; then return; fi
    say holds "$1"
    if grep -qsF "\"cluster\":\"$identity\"" "$1/disk.json"; then say disk "$1"; fi
}
while IFS= read -r made; do
    say made "$made"
    case $made in "state "*) holds "${made#state }" ;; esac
done 2>/dev/null <"$top/made"
for started in "$top"/*/started; do
    if [ -f "$started" ]; then
        say "started.$(basename "$(dirname "$started")")" "$(head -n 1 "$started")"
    fi
done
count=$2
shift 2
number=0
while [ "$number" -lt "$count" ]; do
    if [ -d "$1" ]; then say "dir.$number" "$(stat -L -c '%a %U' "$1")"; fi
    holds "$1"
    number=$((number + 1))
    shift
done
count=$1
shift
number=0
while [ "$number" -lt "$count" ]; do
    if [ -r "$1" ]; then say "file.$number" "$(stat -L -c %a "$1") $(sha256sum <"$1" | cut -c 1-64)"; fi
    number=$((number + 1))
    shift
done
say end yes
