# Makes directories for an account, and writes down in a file of the first one which of them, and of
# those above them, were new, and which were there. Arguments: the account, the file, then for each
# directory its path, its mode, and yes if it is for state: then the mode of one that is there stays,
# and what it holds is written down, for it is not ours.
# Run by root where the inventory says so. Ends with 9 at a directory that is somebody else's: one
# that was there before, belongs to another account, and has something in it.
set -e
umask 022
user=$1
record=$2
shift 2
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
    owner=$(stat -L -c %U "$1")
    if [ "$owner" != "$user" ]; then
        if [ "$had" = no ] || grep -qsxF -e "new $1" -e "had $1" "$record"; then
            chown -R "$user": "$1"
        elif [ -z "$(ls -A "$1" | grep -vx 'lost+found')" ]; then
            chown "$user": "$1"
        else
            echo "$1 belongs to $owner, and there is something in it" >&2
            exit 9
        fi
    fi
    if [ "$had" = no ] || [ "$3" != yes ]; then chmod "$2" "$1"; fi
    printf '%s' "$new" >>"$record"
    if [ "$had" = yes ] && ! grep -qxF -e "new $1" -e "had $1" "$record"; then
        echo "had $1" >>"$record"
        if [ "$3" = yes ]; then ls -A "$1" | sed "s|^|held $1/|" >>"$record"; fi
    fi
    shift 3
done
if [ "$(stat -L -c %U "$record")" != "$user" ]; then chown "$user": "$record"; fi
