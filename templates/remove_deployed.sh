# Removes what a deployment has put on a host; nothing runs any more. Arguments: the installation,
# yes to remove state, too, and the directories of state: those that are not in the installation's
# record are not its own, and are not touched. Run by root where the inventory says so. Says which
# ones still have state. What was there before stays, and so does what is not empty and not ours.
# As long as there is state, the installation keeps two files: whose it is (cluster), and which
# directories are ours (made).
set -e
top=$1
wipe=$2
shift 2
record=$(cat "$top/made" 2>/dev/null || true)
recorded() { printf '%s\n' "$record" | grep -qxF "$@"; }
kept=no
for state in "$@"; do
    stays=no
    recorded -e "state $state" -e "new $state" -e "had $state" || continue
    for entry in "$state"/* "$state"/.[!.]* "$state"/..?*; do
        if [ ! -e "$entry" ] && [ ! -L "$entry" ] || recorded -e "held $entry"; then continue; fi
        if [ "$wipe" = yes ]; then rm -rf "$entry"; else stays=yes; fi
    done
    if [ "$stays" = yes ]; then
        kept=yes
        printf 'kept %s\n' "$state"
    fi
done
# The identity goes last: until then it is known whose all this is, and the command can be repeated.
if [ -d "$top" ]; then
    find "$top" -mindepth 1 -maxdepth 1 ! -name cluster ! -name made -exec rm -rf {} +
    if [ "$kept" = no ]; then rm -f "$top/made" "$top/cluster"; fi
fi
printf '%s\n' "$record" | sed -n 's/^new //p' | sort -r | while IFS= read -r directory; do
    if [ -d "$directory" ]; then rmdir "$directory" 2>/dev/null || true; fi
done
if [ "$kept" = yes ] && [ -n "$record" ]; then
    printf '%s\n' "$record" | sort -u | while IFS= read -r line; do
        if [ -e "${line#* }" ]; then printf '%s\n' "$line"; fi
    done >"$top/.made"
    mv "$top/.made" "$top/made"
fi
