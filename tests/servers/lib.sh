# Words for the scripts of this directory. A script prints only lines that are the same on Linux: `ok NAME`, or
# `NOT NAME` with the reason on standard error. Figures go to standard error too.
export PATH=$PATH:/usr/sbin:/sbin LC_ALL=C HOME=/root
cd /tmp

# check NAME COMMAND...: the command succeeds.
check() {
    local name=$1
    shift
    if "$@" >/tmp/.check 2>&1; then
        echo "ok $name"
    else
        echo "NOT $name"
        echo "$name: $* failed:" >&2
        tail -20 /tmp/.check >&2
    fi
}

# same NAME EXPECTED COMMAND...: the command prints this text.
same() {
    local name=$1 expected=$2 found
    shift 2
    found=$("$@" 2>/tmp/.check)
    if [ "$found" = "$expected" ]; then
        echo "ok $name"
    else
        echo "NOT $name"
        echo "$name: expected '$expected', found '$found'" >&2
        tail -20 /tmp/.check >&2
    fi
}

# matches NAME PATTERN COMMAND...: a line of the command's output matches the pattern.
matches() {
    local name=$1 pattern=$2
    shift 2
    if "$@" >/tmp/.check 2>&1; then :; fi
    if grep -qE -- "$pattern" /tmp/.check; then
        echo "ok $name"
    else
        echo "NOT $name"
        echo "$name: no line matches '$pattern' in:" >&2
        tail -20 /tmp/.check >&2
    fi
}

# until_true SECONDS COMMAND...: repeats the command until it succeeds.
until_true() {
    local end=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt $end ] || return 1
        sleep 0.1
    done
}

# figure NAME VALUE UNIT
exec 3>&2
figure() { echo "figure $1 $2 $3" >&3; }

# kernel: the kernel's memory in page tables, small structures and stacks, in KiB.
kernel() { awk '/^(PageTables|Slab|KernelStack):/ { sum += $2 } END { print sum }' /proc/meminfo; }

# system_time NAME: sets the variable to the seconds of ended children in the kernel. A subshell would see its own
# children only.
system_time() {
    times >/tmp/.times
    read -r "$1" < <(awk 'NR == 2 { split($2, part, /[ms]/); print part[1] * 60 + part[2] }' /tmp/.times)
}

# The lab sets FIGURES: then a script tells more figures, which take longer.

# as USER COMMAND...
as() {
    local user=$1
    shift
    setpriv --reuid "$user" --regid "$user" --init-groups "$@"
}
