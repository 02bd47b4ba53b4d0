//! Tools that end by themselves: compilers, debuggers, archives, media, genomes.

use super::entry::{Apart, BATCH, Entry, Feature};

/// A C program that allocates, sorts and forks.
const C: &str = r#"cat > $IN/p.c <<'END'
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
static int less(const void *a, const void *b) { long x = *(long *)a, y = *(long *)b; return (x > y) - (x < y); }
int main(void) {
    long n = 400000, *v = malloc(n * sizeof *v), sum = 0;
    unsigned long x = 1;
    for (long i = 0; i < n; i++) v[i] = (x = x * 6364136223846793005UL + 1442695040888963407UL) >> 20;
    qsort(v, n, sizeof *v, less);
    for (long i = 0; i < n; i += 101) sum = sum * 31 + v[i];
    fflush(stdout);
    int pid = fork(), status;
    if (!pid) _exit(sum & 63);
    waitpid(pid, &status, 0);
    printf("%ld %d\n", sum, WEXITSTATUS(status) == (int)(sum & 63));
    free(v);
}
END
gcc -g -O1 -o $IN/p $IN/p.c"#;

/// A C file that takes a compiler some seconds.
const LARGE_C: &str = "/usr/bin/python3 - > $IN/l.c <<'END'
print('#include <stdio.h>')
for i in range(1200): print(f'int f{i}(int a, int b) {{ int s = 0; for (int i = 0; i < a; i++) {{ s += (i * b) ^ {i}; if (s % {i + 2} == 0) s -= a; switch (s & 7) {{ case 1: s += {i}; break; case 3: s ^= b; break; default: s++; }} }} return s; }}')
print('int main(void) { long s = 0;' + ''.join(f's = s * 31 + f{i}({i % 50}, {i});' for i in range(1200)) + 'printf(\"%ld\\\\n\", s); }')
END";

const MAKE: &str = r#"cat > $IN/make.py <<'END'
import os
os.makedirs('src', exist_ok=True)
text = 'all: ' + ' '.join(f'p{i}.out' for i in range(8)) + '\n\tcat p*.out\n'
for i in range(8):
    open(f'src/p{i}.c', 'w').write('#include <stdio.h>\n#include <stdlib.h>\nint main(void) { unsigned s = %d; int *v = malloc(4 << 20); for (int i = 0; i < 1 << 20; i++) v[i] = s = s * 48271u + 1; unsigned t = 0; for (int i = 0; i < 1 << 20; i += 7) t = t * 31 + v[i]; printf("%%u\\n", t); free(v); }\n' % (i + 1))
    kind = ['address', 'undefined', 'thread', 'leak'][i % 4]
    text += f'p{i}: src/p{i}.c\n\tgcc -O1 -fsanitize={kind} -o $@ $<\np{i}.out: p{i}\n\t./$< > $@\n'
open('Makefile', 'w').write(text)
END"#;

const GENOME: &str = "/usr/bin/python3 - <<'END'
import random
r = random.Random(5); g = ''.join(r.choice('ACGT') for _ in range(600000))
open('$IN/ref.fa', 'w').write('>c\\n' + '\\n'.join(g[i:i + 70] for i in range(0, len(g), 70)) + '\\n')
comp = str.maketrans('ACGT', 'TGCA')
with open('$IN/r.fq', 'w') as f:
    for i in range(60000):
        p = r.randrange(len(g) - 100); s = list(g[p:p + 100])
        if i % 3 == 0: s[r.randrange(100)] = 'A'
        s = ''.join(s); s = s.translate(comp)[::-1] if i % 2 else s
        f.write(f'@r{i}\\n{s}\\n+\\n{\"I\" * 100}\\n')
END";

const LINES: &str = "/usr/bin/python3 -c \"
s = 1
with open('$IN/lines', 'w') as f:
    for i in range(2500000):
        s = s * 48271 % 2147483647; f.write(f'{s} line {i % 1000}\\n')
\"";

const TREE: &str = "/usr/bin/python3 - <<'END'
import os, random
r = random.Random(9)
for d in range(20):
    os.makedirs(f'$IN/tree/d{d}')
    for f in range(30): open(f'$IN/tree/d{d}/f{f}', 'wb').write(r.randbytes(r.randrange(1000, 300000)))
open('$IN/tree/large', 'wb').write(r.randbytes(90 << 20))
END";

/// A boot sector that sums 8 MiB in a loop, prints on the serial line and leaves by the debug port.
const BOOT: &str = r#"cat > $IN/b.s <<'END'
.code16
.globl _start
_start: xor %ax, %ax
 mov %ax, %ds
 mov %ax, %ss
 mov $0x7c00, %sp
 mov $400, %bp
outer: mov $0x1000, %ax
 mov %ax, %es
 xor %di, %di
 mov $0xffff, %cx
inner: add %cx, %bx
 mov %bx, %es:(%di)
 inc %di
 loop inner
 dec %bp
 jnz outer
 mov $4, %cx
digit: rol $4, %bx
 mov %bl, %al
 and $15, %al
 add $65, %al
 mov $0x3f8, %dx
 out %al, %dx
 loop digit
 mov $10, %al
 out %al, %dx
 mov $0xf4, %dx
 out %al, %dx
stay: hlt
 jmp stay
.org 510
.word 0xaa55
END
as --32 -o $IN/b.o $IN/b.s && ld -m elf_i386 -Ttext 0x7c00 --oformat binary -o $IN/b.img $IN/b.o"#;

const MPI: &str = r#"cat > $IN/m.c <<'END'
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
int main(int c, char **v) {
    MPI_Init(&c, &v);
    int rank, size; MPI_Comm_rank(MPI_COMM_WORLD, &rank); MPI_Comm_size(MPI_COMM_WORLD, &size);
    int n = 4 << 20; int *a = malloc(n * sizeof *a), *b = malloc(n * sizeof *b); long sum = 0, all = 0;
    for (int i = 0; i < n; i++) a[i] = i * (rank + 3);
    for (int round = 0; round < 6; round++) {
        MPI_Sendrecv(a, n, MPI_INT, (rank + 1) % size, 0, b, n, MPI_INT, (rank + size - 1) % size, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        for (int i = 0; i < n; i++) { sum += b[i] % 1009; a[i] = b[i] + round; }
    }
    MPI_Reduce(&sum, &all, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    if (!rank) printf("%ld\n", all);
    MPI_Finalize();
}
END
mpicc -O1 -o $IN/m $IN/m.c"#;

const SQL: &str = "create table t(k integer, v text); with recursive c(i) as (select 1 union all select i+1 from c where i<500000) \
 insert into t select (i*2654435761)%1000003, hex(i*7919) from c; create index x on t(k); select count(*), sum(k), max(v) from t; \
 select k%7, count(distinct v) from t group by 1; create table u as select * from t order by v; select sum(rowid*k)%1000003 from u; pragma integrity_check;";

const ROOTLESS: &str = "mkdir a && cp -r $IN/tree a/ && chown -R 1:2 a && tar cf t.tar --sort=name --mtime=@0 a && tar tvf t.tar | sha256sum && stat -c %u:%g a/tree/large";

const BORROWED: &str =
    "LD_LIBRARY_PATH= sha256sum < $IN/lines; sort -S 40M $IN/lines | md5sum; ps -e | wc -l > /dev/null; id -u";

/// Programs of this file.
pub const ENTRIES: &[Entry] = &[
    Entry {
        name: "SQLite",
        needs: &["sqlite3"],
        packages: "sqlite3",
        version: "sqlite3 --version",
        command: &["sqlite3", "d.db", "-cmd", "pragma cache_size=-60000", SQL],
        local: "24MiB",
        ..BATCH
    },
    Entry {
        name: "GNU sort",
        needs: &["sort"],
        packages: "coreutils",
        version: "sort --version",
        prepare: LINES,
        command: &["sort", "-S", "80M", "--parallel=2", "-k2,3", "-k1n", "-o", "sorted", "$IN/lines"],
        then: "sha256sum < sorted",
        local: "32MiB",
        ..BATCH
    },
    Entry {
        name: "gcc",
        needs: &["gcc"],
        packages: "gcc libc6-dev",
        version: "gcc --version",
        prepare: LARGE_C,
        command: &["gcc", "-O2", "-o", "l", "$IN/l.c"],
        then: "./l; sha256sum < l",
        local: "32MiB",
        ..BATCH
    },
    Entry {
        name: "clang",
        needs: &["clang"],
        packages: "clang",
        version: "clang --version",
        prepare: LARGE_C,
        command: &["clang", "-O1", "-o", "l", "$IN/l.c"],
        then: "./l; sha256sum < l",
        local: "48MiB",
        ..BATCH
    },
    Entry {
        name: "make -j with sanitizers",
        needs: &["make", "gcc"],
        packages: "make gcc libc6-dev",
        version: "make --version",
        prepare: MAKE,
        command: &["sh", "-c", "/usr/bin/python3 $IN/make.py && make -s -j3"],
        then: "cat p0.out p7.out",
        local: "24MiB",
        ..BATCH
    },
    Entry {
        name: "gdb",
        needs: &["gdb", "gcc"],
        packages: "gdb gcc libc6-dev",
        version: "gdb --version",
        prepare: C,
        command: &[
            "sh",
            "-c",
            "gdb -q -batch -nx -ex 'break less' -ex run -ex 'bt 1' -ex delete -ex continue $IN/p 2>&1 | sed 's/0x[0-9a-f]*//g; s/process [0-9]*//'",
        ],
        then: "test -e $IN/p && echo there",
        local: "32MiB",
        ..BATCH
    },
    Entry {
        name: "valgrind",
        needs: &["valgrind", "gcc"],
        packages: "valgrind gcc libc6-dev",
        version: "valgrind --version",
        prepare: C,
        command: &["valgrind", "-q", "--error-exitcode=9", "--leak-check=full", "$IN/p"],
        ..BATCH
    },
    Entry {
        name: "strace",
        needs: &["strace", "gcc"],
        packages: "strace gcc libc6-dev",
        version: "strace --version",
        prepare: C,
        command: &["strace", "-f", "-o", "trace", "-e", "trace=%process", "$IN/p"],
        then: "grep -c exited trace",
        local: "16MiB",
        ..BATCH
    },
    Entry {
        name: "fakeroot",
        needs: &["fakeroot"],
        packages: "fakeroot",
        version: "fakeroot --version",
        prepare: TREE,
        command: &["fakeroot", "sh", "-c", ROOTLESS],
        local: "16MiB",
        ..BATCH
    },
    Entry {
        name: "man",
        needs: &["man"],
        packages: "man-db",
        version: "man --version",
        command: &[
            "sh",
            "-c",
            "printf '.TH X 1 2026-01-01 x y\\n.SH NAME\\nx \\\\- y\\n' > x.1; i=0; while [ $i -lt 4000 ]; do printf '.PP\\nParagraph \\\\fB%d\\\\fR of many words.\\n' $i; i=$((i+1)); done >> x.1; MANPAGER=cat MANWIDTH=80 man -P cat ./x.1",
        ],
        local: "16MiB",
        ..BATCH
    },
    Entry {
        name: "bubblewrap",
        needs: &["bwrap"],
        packages: "bubblewrap",
        version: "bwrap --version",
        prepare: LINES,
        command: &[
            "bwrap",
            "--ro-bind",
            "/",
            "/",
            "--tmpfs",
            "/tmp",
            "--ro-bind",
            "$IN",
            "$IN",
            "--dev",
            "/dev",
            "--proc",
            "/proc",
            "--unshare-pid",
            "sh",
            "-c",
            BORROWED,
        ],
        local: "32MiB",
        ..BATCH
    },
    Entry {
        name: "FFmpeg",
        needs: &["ffmpeg"],
        packages: "ffmpeg",
        version: "ffmpeg -version",
        command: &[
            "ffmpeg",
            "-v",
            "error",
            "-f",
            "lavfi",
            "-i",
            "testsrc2=size=640x360:rate=25:duration=4",
            "-c:v",
            "mpeg4",
            "-threads",
            "2",
            "-flags",
            "bitexact",
            "-f",
            "framemd5",
            "-",
        ],
        local: "32MiB",
        ..BATCH
    },
    Entry {
        name: "ImageMagick",
        needs: &["convert"],
        packages: "imagemagick",
        version: "convert --version",
        command: &[
            "convert",
            "-limit",
            "thread",
            "2",
            "-size",
            "1600x1200",
            "plasma:fractal",
            "-seed",
            "4",
            "-size",
            "1600x1200",
            "gradient:red-blue",
            "-delete",
            "0",
            "-blur",
            "0x6",
            "-resize",
            "70%",
            "-rotate",
            "31",
            "rgb:out",
        ],
        then: "sha256sum < out",
        local: "32MiB",
        ..BATCH
    },
    Entry {
        name: "bwa",
        needs: &["bwa"],
        packages: "bwa",
        version: "bwa 2>&1 | grep Version || true",
        prepare: GENOME,
        command: &[
            "sh",
            "-c",
            "cp $IN/ref.fa . && bwa index ref.fa 2>/dev/null && bwa mem -t 2 ref.fa $IN/r.fq 2>/dev/null | grep -v ^@PG",
        ],
        local: "24MiB",
        ..BATCH
    },
    Entry {
        name: "samtools",
        needs: &["samtools", "bwa"],
        packages: "samtools bwa",
        version: "samtools --version",
        prepare: GENOME,
        command: &[
            "sh",
            "-c",
            "cp $IN/ref.fa . && bwa index ref.fa 2>/dev/null && bwa mem ref.fa $IN/r.fq 2>/dev/null > a.sam && samtools sort -@2 -m 20M -o a.bam a.sam 2>/dev/null && samtools index a.bam && samtools flagstat a.bam && samtools view a.bam | md5sum && samtools depth a.bam | md5sum",
        ],
        local: "24MiB",
        ..BATCH
    },
    Entry {
        name: "Velvet",
        needs: &["velveth"],
        packages: "velvet",
        version: "velveth | grep Version || true",
        prepare: GENOME,
        command: &[
            "sh",
            "-c",
            "OMP_NUM_THREADS=1 velveth o 31 -fastq -short $IN/r.fq > /dev/null && OMP_NUM_THREADS=1 velvetg o -cov_cutoff 2 > /dev/null && sha256sum < o/contigs.fa",
        ],
        local: "48MiB",
        ..BATCH
    },
    Entry {
        name: "Open MPI",
        needs: &["mpicc", "mpirun"],
        packages: "openmpi-bin libopenmpi-dev gcc",
        version: "mpirun --version",
        prepare: MPI,
        command: &["mpirun", "--oversubscribe", "-np", "2", "$IN/m"],
        local: "48MiB",
        ..BATCH
    },
    Entry {
        name: "rsync",
        needs: &["rsync"],
        packages: "rsync",
        version: "rsync --version",
        prepare: TREE,
        command: &["rsync", "-a", "$IN/tree/", "copy/"],
        then: "cd copy && find . -type f | sort | xargs sha256sum | sha256sum",
        local: "16MiB",
        ..BATCH
    },
    Entry {
        name: "restic",
        needs: &["restic"],
        packages: "restic",
        version: "restic version",
        prepare: TREE,
        command: &[
            "sh",
            "-c",
            "export RESTIC_PASSWORD=x RESTIC_CACHE_DIR=$PWD/c; restic -q -r r init > /dev/null && restic -q -r r backup $IN/tree && restic -q -r r check > /dev/null && restic -q -r r restore latest --target o > /dev/null && cd o$IN/tree && find . -type f | sort | xargs sha256sum | sha256sum",
        ],
        local: "32MiB",
        ..BATCH
    },
    Entry {
        name: "tar",
        needs: &["tar"],
        packages: "tar gzip",
        version: "tar --version",
        prepare: TREE,
        command: &["tar", "czf", "t.tgz", "--sort=name", "-C", "$IN", "tree"],
        then: "zcat t.tgz | sha256sum",
        local: "16MiB",
        ..BATCH
    },
    Entry {
        name: "Zstandard",
        needs: &["zstd"],
        packages: "zstd",
        version: "zstd --version",
        prepare: LINES,
        command: &["zstd", "-q", "-5", "-T2", "-o", "z", "$IN/lines"],
        then: "zstd -dcq z | sha256sum; sha256sum < z",
        local: "48MiB",
        ..BATCH
    },
    Entry {
        name: "XZ",
        needs: &["xz"],
        packages: "xz-utils",
        version: "xz --version",
        prepare: LINES,
        command: &["sh", "-c", "head -c 24000000 $IN/lines | xz -2 -T2 > z"],
        then: "xz -dc z | sha256sum; sha256sum < z",
        local: "48MiB",
        ..BATCH
    },
    Entry {
        name: "Git",
        needs: &["git"],
        packages: "git",
        version: "git --version",
        prepare: TREE,
        command: &[
            "sh",
            "-c",
            "git init -q g && cd g && git config user.email a@b && git config user.name a && cp -r $IN/tree . && git add -A && GIT_AUTHOR_DATE='2026-01-01T00:00:00Z' GIT_COMMITTER_DATE='2026-01-01T00:00:00Z' git commit -q -m x && git repack -adq && git fsck --strict 2>&1 | tail -1; git rev-parse HEAD; git clone -q . ../h && git -C ../h ls-tree -r HEAD | sha256sum",
        ],
        local: "48MiB",
        ..BATCH
    },
    Entry {
        name: "OpenSSL",
        needs: &["openssl"],
        packages: "openssl",
        version: "openssl version",
        prepare: LINES,
        command: &[
            "sh",
            "-c",
            "openssl enc -aes-256-ctr -K 00 -iv 00 -in $IN/lines 2>/dev/null | openssl dgst -sha512; openssl dgst -blake2b512 $IN/lines | sed 's/.*= //'",
        ],
        local: "16MiB",
        ..BATCH
    },
    Entry {
        name: "jq",
        needs: &["jq"],
        packages: "jq",
        version: "jq --version",
        prepare: "/usr/bin/python3 -c \"\nimport json\njson.dump([{'i': i, 'k': i * 7919 % 1009, 's': 'x' * (i % 40)} for i in range(150000)], open('$IN/j', 'w'))\"",
        command: &[
            "jq",
            "-c",
            "group_by(.k) | map({k: .[0].k, n: length, t: (map(.s | length) | add)}) | sort_by(.t)",
            "$IN/j",
        ],
        local: "64MiB",
        ..BATCH
    },
    Entry {
        name: "SquashFS tools",
        needs: &["mksquashfs"],
        packages: "squashfs-tools",
        version: "mksquashfs -version",
        prepare: TREE,
        command: &[
            "sh",
            "-c",
            "mksquashfs $IN/tree i.sq -quiet -no-progress -processors 2 -mkfs-time 0 -all-time 0 > /dev/null && unsquashfs -quiet -no-progress -d o i.sq > /dev/null && cd o && find . -type f | sort | xargs sha256sum | sha256sum",
        ],
        local: "48MiB",
        ..BATCH
    },
    Entry {
        name: "QEMU",
        needs: &["qemu-system-x86_64", "as"],
        packages: "qemu-system-x86 binutils",
        version: "qemu-system-x86_64 --version",
        prepare: BOOT,
        command: &[
            "sh",
            "-c",
            "qemu-system-x86_64 -accel tcg -m 64 -display none -no-reboot -serial stdio -device isa-debug-exit,iobase=0xf4,iosize=1 -drive file=$IN/b.img,format=raw,snapshot=on; echo $?",
        ],
        local: "64MiB",
        ..BATCH
    },
    Entry {
        name: "stress-ng",
        needs: &["stress-ng"],
        packages: "stress-ng",
        version: "stress-ng --version",
        command: &[
            "sh",
            "-c",
            "stress-ng --verify --quiet --temp-path . --vm 2 --vm-bytes 48M --mmap 1 --mremap 1 --malloc 1 -t 4s; echo $?",
        ],
        local: "48MiB",
        apart: &[(
            Feature::Local,
            Apart::LeftOut("its stressors end by their time alone, and fork with more than the local memory"),
        )],
        ..BATCH
    },
];
