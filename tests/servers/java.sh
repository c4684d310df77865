# Java: a listening server and its clients, threads, memory that comes and goes.
. "$(dirname "$0")/lib.sh"
cat >/tmp/Server.java <<'X'
import com.sun.net.httpserver.HttpServer;
import java.net.*;
import java.nio.*;
import java.nio.channels.*;
import java.nio.file.*;
import java.util.*;
import java.util.concurrent.*;

public class Server {
    public static void main(String[] words) throws Exception {
        HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", 0), 50);
        server.createContext("/", x -> {
            byte[] text = ("hello " + x.getRequestURI()).getBytes();
            x.sendResponseHeaders(200, text.length);
            x.getResponseBody().write(text);
            x.close();
        });
        ExecutorService pool = Executors.newFixedThreadPool(8);
        server.setExecutor(pool);
        server.start();
        int port = server.getAddress().getPort();
        List<Future<Boolean>> answers = new ArrayList<>();
        for (int i = 0; i < 200; i++) {
            String path = "/" + i;
            answers.add(pool.submit(() -> {
                URLConnection c = new URL("http://127.0.0.1:" + port + path).openConnection();
                return new String(c.getInputStream().readAllBytes()).equals("hello " + path);
            }));
            if (i % 4 == 3) answers.get(i).get();
        }
        int right = 0;
        for (Future<Boolean> a : answers) if (a.get()) right++;
        server.stop(0);
        pool.shutdown();
        System.out.println("served " + right);
        List<byte[]> kept = new ArrayList<>();
        for (int i = 0; i < 30000; i++) {
            kept.add(new byte[10000]);
            if (kept.size() > 3000) kept.subList(0, 1500).clear();
        }
        System.out.println("memory " + (kept.size() > 0));
        Path file = Path.of("/tmp/mapped");
        try (FileChannel c = FileChannel.open(file, StandardOpenOption.CREATE, StandardOpenOption.READ, StandardOpenOption.WRITE)) {
            MappedByteBuffer map = c.map(FileChannel.MapMode.READ_WRITE, 0, 1 << 22);
            for (int i = 0; i < 1 << 20; i++) map.putInt(4 * i, i);
            map.force();
        }
        System.out.println("mapped " + ByteBuffer.wrap(Files.readAllBytes(file)).getInt(4 * 777777));
        Process child = new ProcessBuilder("sh", "-c", "echo $((6 * 7))").start();
        System.out.println("child " + new String(child.getInputStream().readAllBytes()).trim());
        StringBuilder names = new StringBuilder();
        for (NetworkInterface n : Collections.list(NetworkInterface.getNetworkInterfaces())) names.append(n.getName());
        System.out.println("interfaces " + names);
        System.out.println("processors " + Runtime.getRuntime().availableProcessors());
    }
}
X
java -Xmx512m /tmp/Server.java >/tmp/out 2>/tmp/errors || cat /tmp/errors >&2
same "requests" "served 200" grep served /tmp/out
same "memory" "memory true" grep memory /tmp/out
same "mapped file" "mapped 777777" grep mapped /tmp/out
same "child" "child 42" grep child /tmp/out
same "interfaces" "interfaces lo" grep interfaces /tmp/out
same "processors" "processors 2" grep processors /tmp/out
