# The shell, terminals, editors and the programs that tell of the machine.
. "$(dirname "$0")/lib.sh"
same "arrays and arithmetic" "3 55 b" bash -c 'a=(a b c); s=0; for i in {1..10}; do ((s += i)); done; echo ${#a[@]} $s ${a[1]}'
same "process substitution" "2" bash -c 'comm -12 <(seq 1 5 | sort) <(seq 4 9 | sort) | wc -l'
same "coprocess" "HELLO" bash -c 'coproc tr a-z A-Z; echo hello >&${COPROC[1]}; exec {COPROC[1]}>&-; cat <&${COPROC[0]}'
same "job control" "0" bash -mc 'sleep 30 & kill -STOP %1; sleep 0.2; jobs | grep -c Stopped >/dev/null; kill -KILL %1; wait %1 2>/dev/null; jobs -r | wc -l'
same "trap" "caught" bash -c 'trap "echo caught" USR1; kill -USR1 $$'
same "read with a limit" "142" bash -c 'read -t 0.2 x < <(sleep 2); echo $?'
same "TCP of bash" "hello" bash -c '(echo hello | busybox nc -l -p 7001 -w 5 >/dev/null) & until exec 3<>/dev/tcp/127.0.0.1/7001; do sleep 0.1; done 2>/dev/null; head -1 <&3'
matches "ps" ' bash /servers/tools.sh| /usr/bin/bash /servers/tools.sh' ps -ef
matches "ps of threads" 'sleep' sh -c 'sleep 5 & ps -eLo pid,tid,stat,pri,nice,rss,vsz,wchan,tty,time,cmd; kill $!'
matches "top" '^%Cpu' top -bn1
matches "free" '^Mem: +[0-9]+' free -m
matches "vmstat" '^ *[0-9]+ +[0-9]+ ' vmstat
matches "pmap" 'total' pmap $$
matches "pmap with details" 'bash' pmap -x $$
matches "df" '/$' df
matches "lscpu" '^CPU\(s\): +2' lscpu
matches "uptime" 'load average' uptime
matches "mounts" ' on /proc type proc' mount
matches "findmnt" 'proc' findmnt /proc
same "su" "nobody 65534" su -s /bin/sh nobody -c 'echo $(id -un) $(id -u)'
same "nice" "5" nice -n 5 nice
same "timeout" "124" sh -c 'timeout 0.3 sleep 5; echo $?'
same "taskset" "1" sh -c 'taskset -c 0 nproc'
same "killall" "143" bash -c 'sleep 77 & until grep -qx sleep /proc/$!/comm; do :; done; killall sleep; wait $! 2>/dev/null; echo $?'
same "flock" "1" sh -c 'flock -F /tmp/lock sleep 61 & while flock -n /tmp/lock true; do sleep 0.1; done; flock -n /tmp/lock true; echo $?; kill $!'
same "setsid" "yes" sh -c 'setsid -w sh -c "[ \$(ps -o sid= -p \$\$) -eq \$\$ ] && echo yes"'
same "script gives a terminal" "/dev/pts/0" sh -c "script -qec tty /dev/null </dev/null | tr -d '\r'"
same "stty" "24 80" sh -c "script -qec 'stty rows 24 cols 80; stty size' /dev/null </dev/null | tr -d '\r'"
tmux -f /dev/null new-session -d -x 80 -y 24 -s s 'bash --norc'
check "tmux session" tmux has-session -t s
tmux send-keys -t s 'echo $((6 * 7)) $(tty)' Enter
same "tmux pane" "42 /dev/pts/0" sh -c 'until tmux capture-pane -p -t s | grep "^42 "; do sleep 0.1; done'
tmux split-window -t s 'cat'
same "tmux windows" "2" sh -c 'tmux list-panes -t s | wc -l'
tmux send-keys -t s.0 'sleep 60' Enter
until_true 10 pgrep -f '^sleep 60'
tmux send-keys -t s.0 C-c
check "interrupt by a key" until_true 10 sh -c "! pgrep -f '^sleep 60'"
tmux kill-server
check "hang-up" until_true 10 sh -c '! pgrep -x cat'
printf 'one\ntwo\nthree\n' >/tmp/text
same "vim script" "ONE two 3" sh -c 'vim -u NONE -es -c "1s/one/ONE/" -c "3s/three/3/" -c wq /tmp/text </dev/null; echo $(cat /tmp/text)'
same "sort" "$(seq 1 50000)" sh -c 'seq 1 50000 | shuf | sort -n --parallel=2 -S 1M'
same "checksum" "dea9193b768319cbb4ff1a137ac03113" sh -c 'seq 1 100000 | md5sum | cut -c1-32'
same "find and xargs" "100" sh -c 'mkdir -p /tmp/many; for i in $(seq 100); do echo $i >/tmp/many/$i; done; find /tmp/many -type f -print0 | xargs -0 -n 7 cat | wc -l'
same "copy with holes" "0" sh -c 'truncate -s 100M /tmp/holes; cp --sparse=always /tmp/holes /tmp/holes2; du /tmp/holes2 | cut -f1'
same "grep" "10000" sh -c 'seq 1 100000 | grep -c "7$"'
same "tail follows" "late" sh -c 'touch /tmp/follow; while sleep 0.2; do echo late; done >>/tmp/follow & timeout 60 tail -n 0 -f /tmp/follow | head -1; kill $!'
check "git" sh -c 'cd /tmp && rm -rf g && git init -q g && cd g && git config user.email a@b && git config user.name n && seq 1 1000 >f && git add f && git commit -qm one && seq 1 1001 >f && git commit -qam two && git gc -q && git fsck && [ "$(git rev-list --count HEAD)" = 2 ]'
