// Random updates of large arrays and look-ups in a hash map of many objects, with a user's usual flags: the heap's
// size.
//
// Usage: java -Xmx… RandomAccess BYTES. Prints a checksum and the time after the arrays and the map were filled.

import java.util.HashMap;

public class RandomAccess {
    private static final int CHUNK_BITS = 22;

    public static void main(String[] arguments) {
        long bytes = Long.parseLong(arguments[0]);
        // Three quarters are arrays of 32 MiB; an entry of the map takes about 80 bytes.
        int chunks = (int) Math.max(1, (bytes - bytes / 4) / 8 >> CHUNK_BITS);
        int entries = (int) Math.max(1, bytes / 4 / 80);
        long[][] table = new long[chunks][1 << CHUNK_BITS];
        for (int chunk = 0; chunk < chunks; chunk++) {
            for (int at = 0; at < 1 << CHUNK_BITS; at++) {
                table[chunk][at] = ((long) chunk << CHUNK_BITS) + at;
            }
        }
        HashMap<Long, Long> map = new HashMap<>();
        for (long key = 0; key < entries; key++) {
            map.put(key, key * 3);
        }
        long begun = System.nanoTime();
        long state = 88172645463325252L;
        long sum = 0;
        long updates = ((long) chunks << CHUNK_BITS) / 3;
        for (long nth = 0; nth < updates; nth++) {
            state ^= state << 13;
            state ^= state >>> 7;
            state ^= state << 17;
            int chunk = (int) ((state >>> 40) % chunks);
            int at = (int) (state & ((1 << CHUNK_BITS) - 1));
            table[chunk][at] ^= state;
            sum += table[chunk][at];
            if ((nth & 7) == 0) {
                sum += map.get((state >>> 20) % entries);
            }
        }
        double seconds = (System.nanoTime() - begun) / 1e9;
        System.out.println("checksum=" + (sum & Long.MAX_VALUE) + " work_s=" + seconds);
    }
}
