# node: a listening server and its clients, timers, a child, worker threads, memory that comes and goes.
. "$(dirname "$0")/lib.sh"
cat >/tmp/server.js <<'X'
const http = require('http'), net = require('net'), { spawnSync } = require('child_process');
const { Worker } = require('worker_threads');
const server = http.createServer((request, response) => response.end('hello ' + request.url));
server.listen(0, '127.0.0.1', () => {
    const port = server.address().port;
    let left = 300, wrong = 0;
    const agent = new http.Agent({ keepAlive: true, maxSockets: 8 });
    for (let i = 0; i < 300; i++)
        http.get({ agent, port, host: '127.0.0.1', path: '/' + i }, r => {
            let text = '';
            r.on('data', part => text += part);
            r.on('end', () => {
                if (text !== 'hello /' + i) wrong++;
                if (--left === 0) { console.log('served', wrong); agent.destroy(); server.close(unix); }
            });
        });
});
function unix() {
    const path = '/tmp/node.socket';
    const echo = net.createServer(c => c.pipe(c)).listen(path, () => {
        const c = net.connect(path, () => c.end(Buffer.alloc(1 << 20, 'x')));
        let n = 0;
        c.on('data', part => n += part.length);
        c.on('close', () => { console.log('echoed', n); echo.close(memory); });
    });
}
function memory() {
    const kept = [];
    for (let i = 0; i < 100; i++) {
        const o = {};
        for (let j = 0; j < 10000; j++) o['k' + j] = [j];
        kept.push({ o, b: Buffer.alloc(1 << 20, i) });
        if (i > 10) kept[i - 10] = null;
    }
    console.log('memory', kept[99].o.k9999[0]);
    console.log('child', spawnSync('sh', ['-c', 'echo $((6 * 7))']).stdout.toString().trim());
    const shared = new Int32Array(new SharedArrayBuffer(4));
    let left = 4;
    for (let i = 0; i < 4; i++)
        new Worker('const { workerData } = require("worker_threads"); for (let i = 0; i < 10000; i++) Atomics.add(workerData, 0, 1)',
            { eval: true, workerData: shared }).on('exit', () => { if (--left === 0) console.log('workers', shared[0]); });
}
X
node /tmp/server.js >/tmp/out 2>/tmp/errors || cat /tmp/errors >&2
same "requests" "served 0" grep served /tmp/out
same "Unix socket" "echoed 1048576" grep echoed /tmp/out
same "memory" "memory 9999" grep memory /tmp/out
same "child" "child 42" grep child /tmp/out
same "worker threads" "workers 40000" grep workers /tmp/out
same "addresses" "lo 127.0.0.1 ::1" node -p 'const a = require("os").networkInterfaces(); "lo " + a.lo.map(x => x.address).join(" ")'
same "CPUs" "2" node -p 'require("os").cpus().length'
