# redis: requests on the loopback, a save during requests, the append-only file, a restart that keeps the data.
. "$(dirname "$0")/lib.sh"
mkdir -p /tmp/redis
start() {
    redis-server --dir /tmp/redis --save "" --appendonly yes --appendfsync everysec --enable-debug-command local --unixsocket /tmp/redis/socket >>/tmp/redis/log 2>&1 &
    server=$!
    until_true 30 redis-cli ping
    until_true 30 sh -c 'redis-cli info persistence | grep -q loading:0'
}
info() { redis-cli info "$1" | tr -d '\r' | sed -n "s/^$2://p"; }

check "server starts" start
same "text is kept" "hello" sh -c 'redis-cli set greeting hello >/dev/null; redis-cli get greeting'
same "Unix socket" "PONG" redis-cli -s /tmp/redis/socket ping
bench() { redis-benchmark -q -n "$1" -c "$2" -t "$3" | tr '\r' '\n' | grep 'requests per second' >/tmp/bench; }
check "20 clients" bench 2000 20 set,get
figure set "$(awk '/SET/ {print $2}' /tmp/bench)" requests/s
figure get "$(awk '/GET/ {print $2}' /tmp/bench)" requests/s
check "200 clients" bench 1000 200 get
check "lists and sorted sets" bench 500 10 lpush,lrange_100,zadd
redis-cli debug populate 20000 key 500 >/dev/null
same "keys" "20000" sh -c 'redis-cli --scan --pattern "key:[0-9]*" | wc -l'
save() {
    redis-cli bgsave >/dev/null
    redis-benchmark -q -n 2000 -c 10 -r 20000 -t set >/dev/null
    until_true 60 sh -c 'redis-cli info persistence | grep -q rdb_bgsave_in_progress:0'
    [ "$(info persistence rdb_last_bgsave_status)" = ok ]
}
check "save during requests" save
figure fork "$(info stats latest_fork_usec)" us
figure copied "$(info persistence rdb_last_cow_size)" bytes
rewrite() {
    redis-cli bgrewriteaof >/dev/null
    until_true 60 sh -c 'redis-cli info persistence | grep -q aof_rewrite_in_progress:0'
    [ "$(info persistence aof_last_bgrewrite_status)" = ok ]
}
check "append-only file is rewritten" rewrite
size=$(redis-cli dbsize)
redis-cli shutdown >/dev/null 2>&1
check "orderly end" wait $server
check "second start" start
same "a restart keeps the data" "$size hello" sh -c 'echo $(redis-cli dbsize) $(redis-cli get greeting)'
same "publish to a subscriber" "news" sh -c '
    redis-cli subscribe channel >/tmp/heard & until [ "$(redis-cli publish channel news)" = 1 ]; do sleep 0.1; done
    until [ "$(sed -n 6p /tmp/heard)" ]; do sleep 0.1; done; kill $!; sed -n 6p /tmp/heard'
redis-cli config set appendfsync always >/dev/null
redis-cli set last word >/dev/null
kill -9 $server
wait $server 2>/dev/null
check "start after a kill" start
same "a kill keeps what was written" "word" redis-cli get last
redis-cli shutdown nosave >/dev/null 2>&1
same "no listener is left" "0" sh -c "grep -c ':18EB .* 0A ' /proc/net/tcp"
