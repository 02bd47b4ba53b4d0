// Many threads that touch a little of their stacks and then sleep. Usage: java ManyThreads COUNT. Prints `ready
// threads=N pid=PID` once all of them sleep, and ends when its input is closed.

import java.io.IOException;
import java.util.concurrent.CountDownLatch;

public class ManyThreads {
    public static void main(String[] arguments) throws InterruptedException, IOException {
        int wanted = Integer.parseInt(arguments[0]);
        CountDownLatch touched = new CountDownLatch(wanted);
        CountDownLatch never = new CountDownLatch(1);
        for (int nth = 0; nth < wanted; nth++) {
            Thread thread = new Thread(() -> {
                dig(50);
                touched.countDown();
                try {
                    never.await();
                } catch (InterruptedException end) {
                    Thread.currentThread().interrupt();
                }
            });
            thread.setDaemon(true);
            thread.start();
        }
        touched.await();
        System.out.println("ready threads=" + wanted + " pid=" + ProcessHandle.current().pid());
        System.out.flush();
        while (System.in.read() >= 0) {
        }
        Runtime.getRuntime().halt(0);
    }

    private static int dig(int depth) {
        return depth == 0 ? 0 : 1 + dig(depth - 1);
    }
}
