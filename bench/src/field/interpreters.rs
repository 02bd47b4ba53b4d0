//! Languages, their libraries and their virtual machines.

use super::entry::{Apart, BATCH, Entry, Feature};

const PYTHON: &str = "/usr/bin/python3";

const PANDAS: &str = "
import numpy as np, pandas as pd
r = np.random.default_rng(7)
d = pd.DataFrame({'k': r.integers(0, 5000, 600000), 'v': r.standard_normal(600000), 's': r.integers(0, 99, 600000)})
g = d.groupby('k').agg({'v': ['sum', 'min', 'max'], 's': 'nunique'})
m = d.merge(g['v'], left_on='k', right_index=True).sort_values(['k', 'v'])
print(pd.util.hash_pandas_object(g.reset_index()).sum(), pd.util.hash_pandas_object(m).sum(), m.shape)
d.to_csv('d.csv', index=False, float_format='%.6f', chunksize=200000); e = pd.read_csv('d.csv')
print(e.k.sum(), round(float(e.v.sum()), 3))
";

const SKLEARN: &str = "
import os
os.environ['OMP_NUM_THREADS'] = os.environ['OPENBLAS_NUM_THREADS'] = '1'
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.decomposition import PCA
x, y = make_classification(12000, 60, n_informative=20, random_state=3)
f = RandomForestClassifier(30, random_state=3, n_jobs=2).fit(x[:9000], y[:9000])
print(f.score(x[9000:], y[9000:]), f.feature_importances_.tobytes().hex()[:64], PCA(5, random_state=1).fit(x).explained_variance_ratio_.round(9))
";

const NUMPY: &str = "
import numpy as np
r = np.random.default_rng(1); a = r.integers(0, 1 << 40, 6000000); a.sort()
b = np.fft.rfft(np.sin(np.arange(1 << 21))); print(a[::600000], round(float(abs(b).sum()), 3), (a % 97).sum())
m = np.memmap('m', dtype='i8', mode='w+', shape=4000000); m[:] = a[:4000000]; m.flush(); print(int(m.sum()))
";

const DUCKDB: &str = "
import duckdb
c = duckdb.connect('d.db'); c.execute('set threads=2'); c.execute('set enable_progress_bar=false')
c.execute('create table t as select i, (i*2654435761)%1000003 as k, i%97 as g from range(3000000) r(i)')
print(c.execute('select g, count(*), sum(k), min(k), max(k) from t group by g order by g').fetchall())
print(c.execute('select sum(a.k*b.g) from t a join t b on a.i = b.k').fetchall())
c.execute('checkpoint'); c.close(); print(duckdb.connect('d.db').execute('select sum(k) from t').fetchall())
";

const MULTIPROCESSING: &str = "cat > $IN/m.py <<'END'
import multiprocessing as mp, hashlib, os, subprocess
def work(n):
    b = bytearray(os.urandom(1) * 0 + bytes([n]) * (6 << 20)); b[::4096] = bytes([n ^ 255]) * len(b[::4096]); return hashlib.sha256(b).hexdigest()[:16]
if __name__ == '__main__':
    for how in ('fork', 'spawn', 'forkserver'):
        with mp.get_context(how).Pool(3) as p: print(how, p.map(work, range(9)))
    print(subprocess.run(['sha256sum'], input=b'x' * (9 << 20), capture_output=True).stdout)
END";

const GREENLET: &str = "
import greenlet, hashlib
data = [bytearray(1 << 20) for _ in range(60)]
def run(i):
    for r in range(40):
        data[i][r * 4096:(r + 1) * 4096] = bytes([i + r & 255]) * 4096; main.switch()
main = greenlet.getcurrent(); all = [greenlet.greenlet(run) for _ in data]
for i, g in enumerate(all): g.switch(i)
while any(not g.dead for g in all):
    for g in all:
        if not g.dead: g.switch()
print(hashlib.sha256(b''.join(data)).hexdigest())
";

const R: &str = "set.seed(5); x <- matrix(rnorm(300*300), 300); s <- svd(x, 0, 0)$d; print(sum(s)); \
 d <- data.frame(k=sample(1:2000, 4e5, TRUE), v=runif(4e5)); print(head(aggregate(v ~ k, d, sum), 5)); \
 print(summary(lm(v ~ k, d))$coefficients); l <- lapply(1:2e5, function(i) c(i, i^2)); print(sum(sapply(l, sum)))";

const OCTAVE: &str = "rand('twister', 7); a = rand(400); [q, r] = qr(a); printf('%.8f %.8f\\n', sum(abs(diag(r))), norm(a - q * r) < 1e-9); \
 b = sort(rand(3e6, 1)); printf('%.10f\\n', sum(b(1:1000:end))); s = num2cell(1:2e5); printf('%d\\n', sum(cellfun(@(x) x * 2, s)));";

const JAVA: &str = r#"cat > $IN/Field.java <<'END'
import java.util.*;
public class Field {
    public static void main(String[] a) throws Exception {
        long sum = 0;
        Map<Integer, byte[]> kept = new HashMap<>();
        Random r = new Random(11);
        for (int i = 0; i < 400000; i++) {
            byte[] b = new byte[200 + r.nextInt(400)];
            Arrays.fill(b, (byte) i);
            kept.put(r.nextInt(100000), b);
            if (i % 1000 == 0) for (byte[] k : kept.values()) sum += k[k.length / 2];
        }
        long[] big = new long[4000000];
        for (int i = 0; i < big.length; i++) big[i] = r.nextLong();
        Arrays.parallelSort(big);
        for (int i = 0; i < big.length; i += 4001) sum = sum * 31 + big[i];
        System.out.println(sum + " " + kept.size());
    }
}
END
javac -d $IN $IN/Field.java"#;

const NODE: &str = "
const c = require('crypto'), z = require('zlib'); const m = new Map(); let s = 1;
for (let i = 0; i < 600000; i++) { s = (s * 48271) % 2147483647; m.set(s % 200000, { i, t: 'v' + s, a: [s, i] }); }
let h = c.createHash('sha256'); for (const k of [...m.keys()].sort((a, b) => a - b)) h.update(k + m.get(k).t);
const b = Buffer.alloc(32 << 20, 'abc'); const g = z.gunzipSync(z.gzipSync(b)); console.log(h.digest('hex'), g.equals(b), m.size);
";

const GO: &str = r#"cat > $IN/main.go <<'END'
package main

import (
	"crypto/sha256"
	"fmt"
	"sort"
	"sync"
)

func main() {
	var wait sync.WaitGroup
	sums := make([][32]byte, 8)
	for w := range sums {
		wait.Add(1)
		go func(w int) {
			defer wait.Done()
			all := make([]int, 600000)
			x := uint64(w + 1)
			for i := range all {
				x = x*6364136223846793005 + 1442695040888963407
				all[i] = int(x >> 20)
			}
			sort.Ints(all)
			m := map[int]string{}
			for _, v := range all[:60000] {
				m[v%50000] = fmt.Sprint(v)
			}
			sums[w] = sha256.Sum256([]byte(fmt.Sprint(all[:1000], len(m))))
		}(w)
	}
	wait.Wait()
	fmt.Printf("%x\n", sums)
}
END
cd $IN && CGO_ENABLED=0 GO111MODULE=off GOCACHE=$IN/cache go build -o $IN/prog main.go"#;

const RUST: &str = r#"cat > $IN/main.rs <<'END'
use std::collections::{BTreeMap, HashMap};
fn main() {
    let mut x: u64 = 1;
    let mut next = || { x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407); x >> 20 };
    let mut all: Vec<u64> = (0..4_000_000).map(|_| next()).collect();
    all.sort_unstable();
    let tree: BTreeMap<u64, String> = all.iter().step_by(40).map(|v| (v % 100_003, v.to_string())).collect();
    let sums: Vec<u64> = std::thread::scope(|s| { let started: Vec<_> = (0..4).map(|t| { let all = &all; s.spawn(move || {
        let mut m = HashMap::new();
        for v in all.iter().skip(t).step_by(16) { *m.entry(v % 10_007).or_insert(0u64) += v; }
        m.values().fold(0, |a: u64, b| a.wrapping_add(*b)) }) }).collect(); started.into_iter().map(|h| h.join().unwrap()).collect() });
    println!("{:?} {} {}", sums, tree.len(), tree.values().map(|v| v.len()).sum::<usize>());
}
END
cd $IN && PATH=/usr/bin:$PATH rustc -O -o prog main.rs"#;

const RUBY: &str = r#"
require 'digest'
fibers = 200.times.map { |i| Fiber.new { s = ''.b; 60.times { |r| s << ((i + r) % 256).chr * 4096; Fiber.yield }; Digest::SHA256.hexdigest(s) } }
out = {}; while out.size < fibers.size do fibers.each_with_index { |f, i| next if out[i]; v = f.resume; out[i] = v if v.is_a?(String) }; GC.start if out.empty? && rand < 0.05 end
puts Digest::SHA256.hexdigest(out.sort.map(&:last).join); puts (1..300_000).map(&:to_s).sort.each_slice(1000).map(&:first).join(',').size
t = 4.times.map { |n| Thread.new { (1..200_000).sum { |v| v * n } } }; p t.map(&:value)
"#;

const RUBY_CHILDREN: &str = r#"a = (1..600_000).map { |i| "line #{i * 7 % 1000003}" }; puts a.sort.each_slice(1000).map(&:first).join.size
puts 8.times.map { |i| `printf #{i}` }.join; puts IO.popen(%w[cat], 'r+') { |io| io.write(a.first(9)); io.close_write; io.read }"#;

/// Programs that fork with more than their local memory.
const FORKS: &[(Feature, Apart)] =
    &[(Feature::Local, Apart::LeftOut("it forks with more than its local memory, and fork fails with ENOMEM"))];

const PERL: &str = r#"my %h; my $s = 1; for (1..700000) { $s = $s * 48271 % 2147483647; push @{$h{$s % 90000}}, $s; }
my $t = 0; for my $k (sort { $a <=> $b } keys %h) { $t = ($t * 31 + $k + scalar @{$h{$k}}) % 1000000007; } print "$t\n"; my $b = join ",", sort { $a <=> $b } map { $_ * 7 % 1000003 } 1..400000; print length($b), "\n"; print `echo child`;"#;

const GAWK: &str = "BEGIN { s = 1; for (i = 0; i < 900000; i++) { s = s * 48271 % 2147483647; a[s % 150000] += s; b[i % 5000] = b[i % 5000] s % 10 } \
 n = asorti(a, k); t = 0; for (i = 1; i <= n; i++) t = (t * 31 + a[k[i]]) % 1000000007; print n, t, length(b[17]) }";

const fn java(name: &'static str, collector: &'static [&'static str], apart: &'static [(Feature, Apart)]) -> Entry {
    Entry {
        name,
        needs: &["java", "javac"],
        packages: "default-jdk-headless",
        version: "java --version",
        prepare: JAVA,
        command: collector,
        local: "128MiB",
        apart,
        ..BATCH
    }
}

const fn python(
    name: &'static str,
    packages: &'static str,
    version: &'static str,
    command: &'static [&'static str],
) -> Entry {
    Entry { name, needs: &[PYTHON], packages, version, command, local: "64MiB", ..BATCH }
}

/// Programs of this file.
pub const ENTRIES: &[Entry] = &[
    python(
        "pandas",
        "python3-pandas",
        "/usr/bin/python3 -c 'import pandas; print(pandas.__version__)'",
        &[PYTHON, "-c", PANDAS],
    ),
    python(
        "scikit-learn",
        "python3-sklearn",
        "/usr/bin/python3 -c 'import sklearn; print(sklearn.__version__)'",
        &[PYTHON, "-c", SKLEARN],
    ),
    python(
        "NumPy",
        "python3-numpy",
        "/usr/bin/python3 -c 'import numpy; print(numpy.__version__)'",
        &[PYTHON, "-c", NUMPY],
    ),
    Entry {
        local: "160MiB",
        ..python(
            "DuckDB",
            "pip:duckdb",
            "/usr/bin/python3 -c 'import duckdb; print(duckdb.__version__)'",
            &[PYTHON, "-c", DUCKDB],
        )
    },
    Entry {
        prepare: MULTIPROCESSING,
        ..python("Python multiprocessing", "python3", "/usr/bin/python3 --version", &[PYTHON, "$IN/m.py"])
    },
    python(
        "greenlet",
        "python3-greenlet",
        "/usr/bin/python3 -c 'import greenlet; print(greenlet.__version__)'",
        &[PYTHON, "-c", GREENLET],
    ),
    Entry {
        name: "R",
        needs: &["Rscript"],
        packages: "r-base-core",
        version: "R --version",
        command: &["Rscript", "-e", R],
        local: "64MiB",
        ..BATCH
    },
    Entry {
        name: "Octave",
        needs: &["octave-cli"],
        packages: "octave",
        version: "octave-cli --version",
        command: &["octave-cli", "--no-gui", "--quiet", "--eval", OCTAVE],
        local: "48MiB",
        ..BATCH
    },
    java("Java, G1", &["java", "-XX:+UseG1GC", "-Xmx256m", "-cp", "$IN", "Field"], &[]),
    java("Java, Serial", &["java", "-XX:+UseSerialGC", "-Xmx256m", "-cp", "$IN", "Field"], &[]),
    java("Java, Parallel", &["java", "-XX:+UseParallelGC", "-Xmx256m", "-cp", "$IN", "Field"], &[]),
    java("Java, ZGC", &["java", "-XX:+UseZGC", "-Xmx512m", "-cp", "$IN", "Field"], &[]),
    Entry {
        name: "Node.js",
        needs: &["node"],
        packages: "nodejs",
        version: "node --version",
        command: &["node", "-e", NODE],
        local: "96MiB",
        ..BATCH
    },
    Entry {
        name: "Go",
        needs: &["go"],
        packages: "golang-go",
        version: "go version",
        prepare: GO,
        command: &["$IN/prog"],
        apart: &[(Feature::Local, Apart::Refused("it is a Go program"))],
        ..BATCH
    },
    Entry {
        name: "Rust",
        needs: &["rustc"],
        packages: "rustc",
        version: "PATH=/usr/bin:$PATH rustc --version",
        prepare: RUST,
        command: &["$IN/prog"],
        local: "24MiB",
        ..BATCH
    },
    Entry {
        name: "Ruby fibers",
        needs: &["ruby"],
        packages: "ruby",
        version: "ruby --version",
        command: &["ruby", "-e", RUBY],
        local: "48MiB",
        ..BATCH
    },
    Entry {
        name: "Ruby, children",
        needs: &["ruby"],
        packages: "ruby",
        version: "ruby --version",
        command: &["ruby", "-e", RUBY_CHILDREN],
        local: "48MiB",
        apart: FORKS,
        ..BATCH
    },
    Entry {
        name: "Perl",
        needs: &["perl"],
        packages: "perl",
        version: "perl -e 'print $^V'",
        command: &["perl", "-e", PERL],
        local: "48MiB",
        apart: FORKS,
        ..BATCH
    },
    Entry {
        name: "gawk",
        needs: &["gawk"],
        packages: "gawk",
        version: "gawk --version",
        command: &["gawk", GAWK],
        local: "24MiB",
        ..BATCH
    },
];
