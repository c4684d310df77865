# What requests to servers cost: redis GET and SET, a transaction of pgbench, samples appended by prometheus. The emulator
# counts the kernel's instructions between the marks (programs/counts.c). Each stretch warms up first. The lines are
# printed last: when the host takes bytes from the console is chance, and Go's scheduler looks at the clock.
. /servers/lib.sh
export PATH=$PATH:/usr/lib/postgresql/15/bin PGDATA=/var/lib/postgresql/cluster
counted() { # counted NAME TIMES COMMAND...
    local name=$1 times=$2
    shift 2
    "$@" >/tmp/.counted 2>&1 || { cat /tmp/.counted >&2; exit 1; }
    /programs/counts begin
    "$@" >/tmp/.counted 2>&1 || { cat /tmp/.counted >&2; exit 1; }
    /programs/counts end "$name" "$times" >>/tmp/counts
}

mkdir -p /tmp/redis
redis-server --dir /tmp/redis --save "" --appendonly no >/tmp/redis/log 2>&1 &
server=$!
until_true 30 redis-cli ping || exit 1
for kind in get set; do
    counted redis_$kind 2000 redis-benchmark -q -n 2000 -c 1 -t $kind
done
redis-cli shutdown nosave >/dev/null 2>&1
wait $server

mkdir -p $PGDATA /run/postgresql
chown postgres: $PGDATA /run/postgresql
chmod 700 $PGDATA
cd /var/lib/postgresql || exit 1
as postgres initdb -A trust -N >/tmp/initdb 2>&1 || { cat /tmp/initdb >&2; exit 1; }
# Without processes that work in the background now and then.
printf "fsync = off\nautovacuum = off\nlisten_addresses = ''\nbgwriter_delay = 10s\nwal_writer_delay = 10s\n" >>$PGDATA/postgresql.conf
as postgres pg_ctl -w -t 60 -l /tmp/postgres.log start >/dev/null || { cat /tmp/postgres.log >&2; exit 1; }
as postgres createdb bench && as postgres pgbench -i -q -s 1 bench >/tmp/init 2>&1 || { cat /tmp/init >&2; exit 1; }
counted pgbench_transaction 100 as postgres pgbench -n -c 1 -t 100 --random-seed=1 bench
counted pgbench_select 200 as postgres pgbench -n -S -c 1 -t 200 --random-seed=1 bench
as postgres pg_ctl -w -m fast stop >/dev/null

cd /tmp || exit 1
seq 100 | sed 's/.*/{"__name__":"series","number":"&"}/' >/tmp/series.json
# Without the collector of memory, and five times: the times at which Go's threads take turns are chaotic.
append() {
    for _ in 1 2 3 4 5; do
        rm -rf /tmp/written
        GOGC=off promtool tsdb bench write --out=/tmp/written --metrics=100 --scrapes=100 /tmp/series.json || return
    done
}
counted prometheus_append 50000 append
cat /tmp/counts
