# Makes directories for an account, and writes down in a file of the first one which of them, and of
# those above them, were new, which were there, and which are for state: nothing else is ever wiped.
# Arguments: the account, the file, then for each directory its path, its mode, and yes if it is for
# state: then the mode of one that is there stays, and lost files that it holds are not ours.
# Run by root where the inventory says so. Ends with 9 at a directory that is somebody else's: one
# that was there before and has something in it, though this cluster had no state there, or though
# another account has it.
set -e
umask 022
user=$1
record=$2
shift 2
recorded() { grep -qsxF "$@" "$record"; }
filled() { [ -n "$(ls -A "$1" | grep -vx 'lost+found')" ]; }
if grep -qs '^state ' "$record"; then marked=yes; else marked=no; fi
# What was only prepared has had no state yet: whatever there is, is another's.
ours() {
    [ -e "$(dirname "$record")/cluster" ] || return 1
    if [ "$marked" = yes ]; then
        recorded -e "state $1" && return
    else
        recorded -e "new $1" -e "had $1" && return
    fi
    # A disk that an agent was given while it ran.
    grep -qsF "\"cluster\":\"$(head -n 1 "$(dirname "$record")/cluster")\"" "$1/disk.json"
}
while [ $# -gt 0 ]; do
    new=
    at=$1
    while [ ! -e "$at" ]; do
        new="new $at
$new"
        at=$(dirname "$at")
    done
    if [ -z "$new" ]; then had=yes; else had=no; fi
    mkdir -p "$1"
    if [ "$had" = yes ] && [ "$3" = yes ] && filled "$1" && ! ours "$1"; then
        echo "there is something in $1, and this cluster had no state there" >&2
        exit 9
    fi
    owner=$(stat -L -c %U "$1")
    if [ "$owner" != "$user" ]; then
        if [ "$had" = no ] || recorded -e "new $1" -e "had $1"; then
            chown -R "$user": "$1"
        elif ! filled "$1"; then
            chown "$user": "$1"
        elif [ "$3" = yes ]; then
            chown -R "$user": "$1"
        else
            echo "$1 belongs to $owner, and there is something in it" >&2
            exit 9
        fi
    fi
    if [ "$had" = no ] || [ "$3" != yes ]; then chmod "$2" "$1"; fi
    printf '%s' "$new" >>"$record"
    if [ "$had" = yes ] && ! recorded -e "new $1" -e "had $1"; then
        echo "had $1" >>"$record"
        if [ "$3" = yes ] && [ -e "$1/lost+found" ]; then echo "held $1/lost+found" >>"$record"; fi
    fi
    if [ "$3" = yes ] && ! recorded -e "state $1"; then echo "state $1" >>"$record"; fi
    shift 3
done
if [ "$(stat -L -c %U "$record")" != "$user" ]; then chown "$user": "$record"; fi
