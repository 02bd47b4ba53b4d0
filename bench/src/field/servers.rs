//! Servers: a client asks each under load, and its answers are compared. The server then gets SIGTERM.

use super::entry::{BATCH, Entry};

const REDIS_CLIENT: &str = "/usr/bin/python3 - <<'END'
import os, socket, hashlib, time
for i in range(300):
    try: s = socket.create_connection(('127.0.0.1', int(os.environ['PORT'])), 60); break
    except OSError: time.sleep(0.1)
f = s.makefile('rwb')
def ask(*w):
    f.write(b'*%d\\r\\n' % len(w) + b''.join(b'$%d\\r\\n%s\\r\\n' % (len(x), x) for x in w)); f.flush(); return answer()
def answer():
    l = f.readline().rstrip(); k, r = l[:1], l[1:]
    if k == b'$': return None if r == b'-1' else f.read(int(r) + 2)[:-2]
    if k == b'*': return [answer() for _ in range(int(r))]
    return r
h = hashlib.sha256(); x = 1
for i in range(25000):
    x = x * 48271 % 2147483647
    ask(b'SET', b'k%d' % (x % 20000), b'%d' % x * 150)
    if i % 9000 == 5000:
        while b'rdb_bgsave_in_progress:1' in ask(b'INFO', b'persistence'): time.sleep(0.02)
        print(ask(b'BGSAVE'))
for i in range(20000): h.update(ask(b'GET', b'k%d' % i) or b'-')
print(h.hexdigest(), ask(b'DBSIZE'))
END";

const MEMCACHED_CLIENT: &str = "/usr/bin/python3 - <<'END'
import os, socket, hashlib, time
for i in range(300):
    try: s = socket.create_connection(('127.0.0.1', int(os.environ['PORT'])), 60); break
    except OSError: time.sleep(0.1)
f = s.makefile('rwb'); x = 1; h = hashlib.sha256()
for i in range(25000):
    x = x * 48271 % 2147483647; v = b'%d' % x * 150
    f.write(b'set k%d 0 0 %d\\r\\n%s\\r\\n' % (x % 20000, len(v), v)); f.flush(); assert f.readline() == b'STORED\\r\\n'
for i in range(20000):
    f.write(b'get k%d\\r\\n' % i); f.flush()
    while (l := f.readline()) != b'END\\r\\n': h.update(l)
print(h.hexdigest())
END";

const NGINX: &str = "mkdir -p $IN/www && for i in $(seq 60); do head -c 1500000 /dev/zero | openssl enc -aes-128-ctr -K $i -iv 00 2>/dev/null > $IN/www/$i; done
cat > $IN/nginx.conf <<END
daemon off; worker_processes 2; pid nginx.pid; error_log stderr; user root;
events {}
http { access_log off; client_body_temp_path t1; proxy_temp_path t2; fastcgi_temp_path t3; uwsgi_temp_path t4; scgi_temp_path t5;
 server { listen 127.0.0.1:$PORT; root $IN/www; gzip on; gzip_types *; } }
END";

const PG: &str = "chown postgres $IN && PGBIN=$(ls -d /usr/lib/postgresql/*/bin | tail -1)
setpriv --reuid=postgres --regid=postgres --clear-groups $PGBIN/initdb -D $IN/db -U postgres -A trust > /dev/null
printf 'listen_addresses=%s\\nunix_socket_directories=%s\\nfsync=off\\nshared_buffers=64MB\\nmax_parallel_workers_per_gather=2\\n' \"'127.0.0.1'\" \"'$IN'\" >> $IN/db/postgresql.conf
cat > $IN/serve <<END
#!/bin/sh
cp -a $IN/db db
exec setpriv --reuid=postgres --regid=postgres --clear-groups $PGBIN/postgres -D \\$PWD/db -p $PORT
END
chmod +x $IN/serve";

const PG_SQL: &str = "for i in $(seq 400); do (exec 3<>/dev/tcp/127.0.0.1/$PORT) 2>/dev/null && break; sleep 0.1; done; for i in $(seq 100); do psql -qAtX -h 127.0.0.1 -p $PORT -U postgres -c 'select 1' > /dev/null 2>&1 && break; sleep 0.1; done; psql -qAtX -h 127.0.0.1 -p $PORT -U postgres <<'END'
create table t as select i, (i::bigint*2654435761)%1000003 k, md5(i::text) s from generate_series(1,300000) i; create index on t(k); analyze t; select count(*), sum(k), md5(string_agg(s, '' order by k, i)) from t; select count(*) from t a join t b on a.i = b.k; select k % 5, max(s) from t group by 1 order by 1;
END";

const MARIA: &str = "mkdir -p $IN/m && mariadb-install-db --no-defaults --user=root --datadir=$IN/m --auth-root-authentication-method=normal > /dev/null 2>&1
cat > $IN/serve <<END
#!/bin/sh
cp -a $IN/m m
exec mariadbd --no-defaults --user=root --datadir=\\$PWD/m --port=$PORT --bind-address=127.0.0.1 --socket=\\$PWD/s --innodb-buffer-pool-size=64M --skip-grant-tables --skip-log-bin
END
chmod +x $IN/serve";

const MARIA_SQL: &str = "for i in $(seq 400); do (exec 3<>/dev/tcp/127.0.0.1/$PORT) 2>/dev/null && break; sleep 0.1; done; mariadb --no-defaults -N -h 127.0.0.1 -P $PORT <<'END'
create database f; use f; create table t (i int primary key, k bigint, s varchar(40), key(k)) engine=innodb; insert into t select seq, (seq*2654435761)%1000003, md5(seq) from seq_1_to_200000; select count(*), sum(k), max(s) from t; select count(*) from t a join t b on a.i=b.k; select k%5, min(s) from t group by 1 order by 1; check table t;
END";

const BASE_BACKUP: &str = "chown postgres $IN && PGBIN=$(ls -d /usr/lib/postgresql/*/bin | tail -1)
setpriv --reuid=postgres --regid=postgres --clear-groups $PGBIN/initdb -D $IN/db -U postgres -A trust > /dev/null
printf 'listen_addresses=%s\\nunix_socket_directories=%s\\nfsync=off\\nshared_buffers=64MB\\nmax_parallel_workers_per_gather=2\\n' \"'127.0.0.1'\" \"'$IN'\" >> $IN/db/postgresql.conf
cat > $IN/go <<'END'
#!/bin/sh
set -e
as() { setpriv --reuid=postgres --regid=postgres --clear-groups \"$@\"; }
PGBIN=$(ls -d /usr/lib/postgresql/*/bin | tail -1)
cp -a $IN/db db; chown postgres .
as $PGBIN/pg_ctl -D $PWD/db -o \"-p $PORT\" -l $PWD/log -w start > /dev/null
trap 'as $PGBIN/pg_ctl -D $PWD/db -m fast -w stop > /dev/null' EXIT
psql -qAtX -h 127.0.0.1 -p $PORT -U postgres -c 'create table t as select i, md5(i::text) s from generate_series(1,600000) i' -c checkpoint
as pg_basebackup -h 127.0.0.1 -p $PORT -U postgres -D $PWD/backup -c fast
as $PGBIN/pg_ctl -D $PWD/db -m fast -w stop > /dev/null
as $PGBIN/pg_ctl -D $PWD/backup -o \"-p $PORT\" -l $PWD/log2 -w start > /dev/null
trap 'as $PGBIN/pg_ctl -D $PWD/backup -m fast -w stop > /dev/null' EXIT
psql -qAtX -h 127.0.0.1 -p $PORT -U postgres -c 'select count(*), sum(i), md5(string_agg(s, null order by i)) from t'
END
chmod +x $IN/go";

/// Programs of this file.
pub const ENTRIES: &[Entry] = &[
    Entry {
        name: "Redis",
        needs: &["redis-check-rdb"],
        packages: "redis-tools",
        version: "cp $(readlink -f $(command -v redis-check-rdb)) $IN/redis-server && $IN/redis-server --version",
        command: &[
            "$IN/redis-server",
            "--port",
            "$PORT",
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--dir",
            ".",
            "--appendonly",
            "no",
        ],
        client: Some(REDIS_CLIENT),
        local: "96MiB",
        ..BATCH
    },
    Entry {
        name: "memcached",
        needs: &["memcached"],
        packages: "memcached",
        version: "memcached --version",
        command: &["memcached", "-u", "root", "-l", "127.0.0.1", "-p", "$PORT", "-m", "128", "-t", "2"],
        client: Some(MEMCACHED_CLIENT),
        local: "24MiB",
        ..BATCH
    },
    Entry {
        name: "nginx",
        needs: &["nginx", "curl"],
        packages: "nginx-light curl",
        version: "nginx -v 2>&1",
        prepare: NGINX,
        command: &["nginx", "-p", ".", "-e", "stderr", "-c", "$IN/nginx.conf"],
        client: Some(
            "for i in $(seq 400); do (exec 3<>/dev/tcp/127.0.0.1/$PORT) 2>/dev/null && break; sleep 0.1; done; for r in 1 2; do for i in $(seq 60); do curl -sS --compressed http://127.0.0.1:$PORT/$i; done | sha256sum; done",
        ),
        local: "16MiB",
        ..BATCH
    },
    Entry {
        name: "PostgreSQL",
        needs: &["psql", "setpriv"],
        packages: "postgresql",
        version: "psql --version",
        prepare: PG,
        command: &["sh", "-c", "chown postgres . && exec $IN/serve"],
        client: Some(PG_SQL),
        local: "64MiB",
        ..BATCH
    },
    Entry {
        name: "MariaDB",
        needs: &["mariadbd", "mariadb"],
        packages: "mariadb-server",
        version: "mariadbd --version",
        prepare: MARIA,
        command: &["$IN/serve"],
        client: Some(MARIA_SQL),
        local: "96MiB",
        ..BATCH
    },
    Entry {
        name: "pg_basebackup",
        needs: &["pg_basebackup", "setpriv"],
        packages: "postgresql",
        version: "pg_basebackup --version",
        prepare: BASE_BACKUP,
        command: &["$IN/go"],
        local: "64MiB",
        ..BATCH
    },
];
