# Facts of a host, as lines of a key, a tab and a value. Arguments: how many directories, the
# directories, then ports. Needs a POSIX shell and coreutils; changes nothing but probe files of its own.
say() { printf '%s\t%s\n' "$1" "$2"; }
first() { "$@" 2>/dev/null | head -n 1; }
say user "$(id -un)"
say uid "$(id -u)"
say home "$HOME"
say host "$(uname -n)"
say system "$(uname -s)"
say machine "$(uname -m)"
say libc "$(first getconf GNU_LIBC_VERSION)"
say machine_id "$(first cat /etc/machine-id)"
say clock "$(date +%s.%N)"
say cpus "$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 0)"
say memory_kb "$(sed -n 's/^MemTotal: *\([0-9]*\).*/\1/p' /proc/meminfo)"
say memory_free_kb "$(sed -n 's/^MemAvailable: *\([0-9]*\).*/\1/p' /proc/meminfo)"
say open_files "$(ulimit -Hn)"
if [ -d /run/systemd/system ]; then say systemd yes; else say systemd no; fi
if [ -S "/run/user/$(id -u)/systemd/private" ]; then say user_manager yes; fi
if [ -e "/var/lib/systemd/linger/$(id -un)" ]; then say linger yes; fi
if sudo -n true 2>/dev/null; then say sudo yes; else say sudo no; fi
for python in python3 python3.14 python3.13 python3.12 python3.11; do
    command -v "$python" >/dev/null 2>&1 || continue
    version=$(first "$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    say python "$version $(command -v "$python")"
done
# Where Python looks for one. Java takes /tmp, whatever is said elsewhere.
temp=no
for directory in "$TMPDIR" /tmp /var/tmp; do
    probe=$(mktemp "${directory:-/tmp}/rhino-probe.XXXXXX" 2>/dev/null) || continue
    rm -f "$probe"
    temp=yes
    break
done
probe=$(mktemp /tmp/rhino-probe.XXXXXX 2>/dev/null)
if [ -n "$probe" ]; then
    printf '#!/bin/sh\nexit 0\n' >"$probe"
    chmod 700 "$probe"
    if ! "$probe" 2>/dev/null; then temp=noexec; fi
    rm -f "$probe"
fi
say temp "$temp"
for process in /proc/[0-9]*; do
    line=$(tr '\0' '\n' <"$process/cmdline" 2>/dev/null) || continue
    case $line in *org.apache.spark.deploy.worker.Worker*) ;; *) continue ;; esac
    home=$(tr '\0' '\n' <"$process/environ" 2>/dev/null | sed -n 's/^SPARK_HOME=//p')
    jar=$(ls "$home"/jars/spark-core_*.jar 2>/dev/null | head -n 1)
    say spark "${jar##*-core_}"
done
count=$1
shift
number=0
while [ "$number" -lt "$count" ]; do
    directory=$1
    shift
    there=$directory
    while [ ! -d "$there" ]; do
        if [ -e "$there" ] || [ -L "$there" ]; then say "dir.$number.file" yes; fi
        there=$(dirname "$there")
    done
    say "dir.$number.there" "$there"
    say "dir.$number.space_kb" "$(df -Pk "$there" 2>/dev/null | awk 'NR==2 {print $2, $4}')"
    say "dir.$number.inodes" "$(df -Pi "$there" 2>/dev/null | awk 'NR==2 {print $2, $4}')"
    say "dir.$number.mount" "$(df -P "$there" 2>/dev/null | awk 'NR==2 {print $6}')"
    say "dir.$number.type" "$(first stat -f -c %T "$there")"
    probe=$(LC_ALL=C mktemp -d "$there/.rhino-probe.XXXXXX" 2>&1)
    case $probe in *": Read-only file system") say "dir.$number.read_only" yes ;; esac
    if [ -d "$probe" ]; then
        say "dir.$number.writable" yes
        echo x >"$probe/a"
        if ln "$probe/a" "$probe/b" 2>/dev/null; then say "dir.$number.links" yes; fi
        if cp --reflink=always "$probe/a" "$probe/c" 2>/dev/null; then say "dir.$number.reflinks" yes; fi
        printf '#!/bin/sh\nexit 0\n' >"$probe/d"
        chmod 700 "$probe/d"
        if "$probe/d" 2>/dev/null; then say "dir.$number.exec" yes; fi
        began=$(date +%s%N)
        dd if=/dev/zero of="$probe/e" bs=4096 count=20 oflag=dsync 2>/dev/null
        say "dir.$number.sync_ns" "$((($(date +%s%N) - began) / 20))"
        rm -rf "$probe"
    fi
    number=$((number + 1))
done
for port in "$@"; do
    hex=$(printf '%04X' "$port")
    if awk -v at=":$hex" '$4 == "0A" && substr($2, length($2) - 4) == at {found = 1} END {exit !found}' \
        /proc/net/tcp /proc/net/tcp6 2>/dev/null; then say "port.$port" taken; else say "port.$port" free; fi
done
say end yes
