# PostgreSQL 15: a new cluster, clients on Unix and TCP sockets, shared buffers of half the memory, a crash and its
# recovery.
. "$(dirname "$0")/lib.sh"
export PATH=$PATH:/usr/lib/postgresql/15/bin PGDATA=/var/lib/postgresql/cluster
mkdir -p $PGDATA /run/postgresql
chown postgres: $PGDATA /run/postgresql
chmod 700 $PGDATA
cd /var/lib/postgresql || exit 1
half=$(($(awk '/^MemTotal/ {print $2}' /proc/meminfo) / 2048))
sql() { as postgres psql -qtA "$@"; }
start() { as postgres pg_ctl -w -t 60 -l /tmp/postgres.log start; }

check "initdb" as postgres initdb -A trust -N
cat >>$PGDATA/postgresql.conf <<X
shared_buffers = ${half}MB
max_connections = 230
listen_addresses = 'localhost'
X
check "server starts" start
same "buffers of half the memory" "${half}MB" sql -c "show shared_buffers"
same "query" "2" sql -c "select 1 + 1"
same "TCP" "127.0.0.1/32" sql -h 127.0.0.1 postgres -c "select host(inet_server_addr()) || '/' || masklen(inet_server_addr())"
check "createdb" as postgres createdb bench
check "pgbench tables" as postgres pgbench -i -q -s 1 bench
bench() {
    local clients=$1 transactions=$2
    shift 2
    as postgres pgbench "$@" -n -c "$clients" -j 2 -t "$transactions" bench >/tmp/bench 2>&1 || { cat /tmp/bench; return 1; }
    grep -q "processed: $((clients * transactions))/$((clients * transactions))" /tmp/bench || { cat /tmp/bench; return 1; }
    figure "pgbench_$clients" "$(awk '/^tps/ {print $3}' /tmp/bench)" transactions/s
}
check "2 clients" bench 2 100
check "20 clients over TCP" bench 20 20 -h 127.0.0.1
check "200 clients" bench 200 4
# The kernel's memory for each client, and for each page of shared memory that a client maps, while so many clients ask
# for random rows. The two kernels map different numbers of pages around a fault.
mapped() {
    local clients=$1 before had pages grown
    shared() { cat /proc/[0-9]*/status 2>/dev/null | awk '/^Name:/ { postgres = $2 == "postgres" } /^RssShmem:/ && postgres { sum += $2 } END { print sum / 4 }'; }
    before=$(kernel) had=$(shared)
    as postgres pgbench -n -S -c "$clients" -j 2 -T 30 bench >/dev/null 2>&1 &
    if until_true 60 sh -c "[ \$(pgrep -fc '[p]ostgres: postgres bench') -ge $clients ]"; then
        sleep 5
        pages=$(($(shared) - had)) grown=$(($(kernel) - before))
        figure "kernel_client_$clients" $((grown / clients)) KiB
        [ $pages -gt 0 ] && figure "kernel_$clients" $((grown * 1024 / pages)) bytes/page
    fi
    wait $!
}
if [ -n "$FIGURES" ]; then
    mapped 20
    mapped 200
fi
same "history" "1400" sql bench -c "select count(*) from pgbench_history"
same "sums agree" "t" sql bench -c "select (select sum(abalance) from pgbench_accounts) = (select sum(delta) from pgbench_history)"
same "parallel plan" "100000" sql bench -c "set parallel_setup_cost = 0; set parallel_tuple_cost = 0; set min_parallel_table_scan_size = 0; select count(*) from pgbench_accounts"
same "sort on disk" "300000" sql bench -c "set work_mem = '64kB'; select count(*) from (select i from generate_series(1, 300000) i order by -i) s"
same "listen and notify" "Asynchronous notification" sh -c "printf 'listen c;\nnotify c;\n' | setpriv --reuid postgres --regid postgres --init-groups psql -q bench | sed -n 's/^\(Asynchronous notification\) .*/\1/p'"
kill -9 "$(sed -n 1p $PGDATA/postmaster.pid)"
until_true 30 sh -c '! pgrep postgres'
check "start after a kill" start
matches "recovery" "redo done|not properly shut down" cat /tmp/postgres.log
same "recovery keeps the history" "1400" sql bench -c "select count(*) from pgbench_history"
victim=$(sql bench -c "select pg_backend_pid()")
check "a killed backend restarts the server" sh -c "
    setpriv --reuid postgres --regid postgres --init-groups psql -qtA bench -c 'select pg_sleep(30)' >/dev/null 2>&1 &
    until pid=\$(pgrep -f '^postgres:.*SELECT') && [ -n \"\$pid\" ]; do sleep 0.1; done
    kill -9 \$pid; sleep 1"
check "server is back" until_true 30 as postgres psql -qtA bench -c "select 1"
check "orderly end" as postgres pg_ctl -w -m fast stop
same "no shared memory is left" "0" sh -c "tail -n +2 /proc/sysvipc/shm | wc -l; ls /dev/shm >&2"
