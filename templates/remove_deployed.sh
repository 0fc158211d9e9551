# Removes what a deployment has put on a host; nothing runs any more. Arguments: the installation,
# yes to remove state, too, and the directories of state. Run by root where the inventory says so.
# What was there before stays, and so does what is not empty and not ours.
set -e
top=$1
wipe=$2
shift 2
made=$(sed -n 's/^new //p' "$top/made" 2>/dev/null || true)
if [ "$wipe" = yes ]; then
    for state in "$@"; do
        if [ -d "$state" ]; then find "$state" -mindepth 1 -delete; fi
    done
fi
# The identity goes last: until then it is known whose all this is, and the command can be repeated.
if [ -d "$top" ]; then
    find "$top" -mindepth 1 -maxdepth 1 ! -name cluster ! -name made -exec rm -rf {} +
    rm -f "$top/made" "$top/cluster"
fi
printf '%s\n' "$made" | sort -r | while IFS= read -r directory; do
    if [ -d "$directory" ]; then rmdir "$directory" 2>/dev/null || true; fi
done
