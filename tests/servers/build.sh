# Source packages of Debian: unpacked, built by make and gcc, and run. Then ten packages are built at the same time.
. "$(dirname "$0")/lib.sh"

# source_of NAME DIRECTORY: unpacks the upstream files of a source package and checks their sums.
source_of() { dpkg-source --skip-patches --no-overwrite-dir -x /usr/src/"$1"_*.dsc "$2"; }

check "unpack lua" source_of lua5.4 lua
same "lines of lua" "29726" sh -c "cat lua/src/*.c lua/src/*.h | wc -l"
before=$SECONDS
check "make -j4" make -C lua/src -j4 linux CFLAGS="-O0 -std=gnu99 -DLUA_COMPAT_5_3"
figure "make of lua" $((SECONDS - before)) s
same "lua runs" "46368 sorted 10000" lua/src/lua -e '
    local function fib(n) if n < 2 then return n end return fib(n - 1) + fib(n - 2) end
    local t = {}
    for i = 1, 10000 do t[i] = (i * 7919) % 10007 end
    table.sort(t)
    local order = "sorted"
    for i = 2, #t do if t[i - 1] > t[i] then order = "unsorted" end end
    print(fib(24) .. " " .. order .. " " .. #t)'
same "compiled script" "hello from bytes" sh -c 'echo "print([[hello from bytes]])" >l.lua && lua/src/luac -o l.out l.lua && lua/src/lua l.out'
same "nothing to do" "0" sh -c 'make -C lua/src -q linux CFLAGS="-O0 -std=gnu99 -DLUA_COMPAT_5_3" lua >/dev/null; echo $?'
same "symbols" "lua_newstate" sh -c "nm lua/src/liblua.a 2>/dev/null | awk '\$3 == \"lua_newstate\" && \$2 == \"T\" { print \$3 }'"
same "git of the source" "clean 1" sh -c 'cd lua && make -s -C src clean && git init -q . && git config user.email a@b && git config user.name n &&
    git add -A && git commit -qm one && rm -r src && git checkout -q -- src && git diff --quiet && git fsck >/dev/null 2>&1 &&
    echo clean $(git rev-list --count HEAD)'

# Ten packages at once. Each row is a name, a command and the program's words.
build() {
    case $1 in
        bzip2) make -j2 bzip2 CFLAGS="-O0 -D_FILE_OFFSET_BITS=64" ;;
        dos2unix) make -j2 dos2unix ENABLE_NLS= CC="gcc -O0" ;;
        ed) ./configure CFLAGS=-O0 && make -j2 ;;
        ent) make -j2 ent CFLAGS=-O0 ;;
        figlet) make -j2 figlet CC="gcc -O0" DEFAULTFONTDIR="$PWD/fonts" ;;
        picocom) make -j2 picocom CC="gcc -O0" ;;
        tree) make -j2 tree CFLAGS="-O0 -std=c11 -D_LARGEFILE64_SOURCE -D_FILE_OFFSET_BITS=64" ;;
        unifdef) make -j2 unifdef CFLAGS=-O0 ;;
        xxhash) make -j2 xxhsum CFLAGS=-O0 ;;
        zlib) CFLAGS=-O0 ./configure --static && make -j2 libz.a minigzip ;;
    esac
}
ten="bzip2 dos2unix ed ent figlet picocom tree unifdef xxhash zlib"
mkdir ten
cd ten
system_time before_system
before=$SECONDS
for name in $ten; do
    (source_of "$name" "$name" && cd "$name" && build "$name") >"$name.log" 2>&1 </dev/null &
    pids="$pids $name:$!"
done
for pair in $pids; do
    if wait "${pair#*:}"; then
        echo "ok build of ${pair%:*}"
    else
        echo "NOT build of ${pair%:*}"
        tail -20 "${pair%:*}.log" >&2
    fi
done
figure "ten builds" $((SECONDS - before)) s
system_time after_system
figure "ten builds system" "$(awk "BEGIN { print $after_system - $before_system }")" s

seq 1 20000 >numbers
same "bzip2 runs" "ok" sh -c 'bzip2/bzip2 -k numbers && bzip2/bzip2 -dc numbers.bz2 | cmp - numbers && echo ok'
same "dos2unix runs" "ok" sh -c 'sed "s/$/\r/" numbers >dos && dos2unix/dos2unix -q dos && cmp dos numbers && echo ok'
same "ed runs" "three" sh -c 'printf "one\ntwo\n" >e; printf "2s/two/three/\nw\nq\n" | ed/ed -s e; tail -1 e'
same "ent runs" "108894" sh -c 'ent/ent -t numbers | tail -1 | cut -d, -f2'
matches "figlet runs" '\|___/' figlet/figlet -f standard Quire gj
matches "picocom runs" 'picocom v3.1' picocom/picocom --help
same "tree runs" "2 directories, 2 files" sh -c 'mkdir -p t/u && touch t/a t/u/b && tree/tree t | tail -1'
same "unifdef runs" "b" sh -c 'printf "#ifdef A\na\n#else\nb\n#endif\n" | unifdef/unifdef -UA'
same "xxhsum runs" "$(printf 'ok')" sh -c 'xxhash/xxhsum numbers >sums && xxhash/xxhsum -c sums >/dev/null && echo ok'
same "minigzip runs" "ok" sh -c 'zlib/minigzip <numbers >numbers.gz && gzip -dc numbers.gz | cmp - numbers && echo ok'
