//! Scripts of real programs. Their output is the same each time.

/// Name, program that must be installed, script for `sh`.
pub(crate) const SCRIPTS: &[(&str, &str, &str)] = &[
    ("sort", "sort", "seq 1 200000 | sed 's/$/ padding padding/' | sort -r --buffer-size 4M | cksum"),
    ("sqlite3, blobs", "sqlite3", SQLITE_BLOBS),
    ("sqlite3, a large script", "sqlite3", SQLITE_SCRIPT),
    ("tar and zstd", "zstd", TAR_AND_ZSTD),
    ("python", "python3", PYTHON),
    ("git", "git", GIT),
    ("redis", "redis-server", REDIS),
];

const SQLITE_BLOBS: &str = "\
sqlite3 :memory: \"pragma page_size=65536; create table t(a, b); with recursive c(x) as (select 1 union all \
select x+1 from c where x < 300) insert into t select x, zeroblob(40000 + x) || hex(x * 7919) from c; create \
table u as select a, b || b as b from t; select count(*), sum(length(b)), max(substr(b, -4)) from u;\"";

/// 30 000 statements, a database in a file, and its dump.
const SQLITE_SCRIPT: &str = "\
d=$(mktemp -d) && {
    echo 'pragma page_size=65536; begin; create table t(id integer primary key, a text, b blob);'
    seq 1 25000 | sed \"s/.*/insert into t values(&, 'row & of a large script', zeroblob(& % 900));/\"
    echo 'commit; begin; create index i on t(a);'
    seq 1 5000 | sed 's/.*/update t set b = b || hex(a) where id = & * 3;/'
    echo 'commit; delete from t where id % 7 = 0; vacuum; pragma integrity_check;'
    echo 'select count(*), sum(length(b)), max(a) from t;'
    echo '.dump'
} > $d/script && sqlite3 $d/db < $d/script | cksum && cksum < $d/db; rm -r $d";

const TAR_AND_ZSTD: &str = "\
d=$(mktemp -d) && seq 1 300000 > $d/a && head -c 3000000 /dev/zero > $d/b && tar -C $d -cf - a b | zstd -q -5 | \
zstd -q -d | tar -C $d -xOf - | cksum; rm -r $d";

const PYTHON: &str = "\
python3 -c \"
import hashlib
a = bytearray((i * 7919 >> 3) & 255 for i in range(1000003))
h = hashlib.sha256()
for i in range(20):
    b = bytes(a[i * 1000:]); c = bytearray(b); c[len(c) // 2:] = b[:len(b) // 2]
    c.extend(b); del c[:12345]; c += bytes(500000 + i)
    x = bytearray(b); x[-1] ^= 1
    assert x != b and (bytes(x) < b) == (x[-1] < b[-1]) and b == bytes(memoryview(b)[:])
    h.update(c); h.update(b.replace(b'a', b'bb'))
print(h.hexdigest())
\"";

/// Several commits, a clone, and the packs of both.
const GIT: &str = "\
d=$(mktemp -d) && cd $d && git init -q a && cd a && for i in 1 2 3 4 5; do
    seq $i 200000 > large && seq 1 $i > file$i && git add . &&
    GIT_COMMITTER_DATE=2020-01-0${i}T00:00:00Z git -c user.name=x -c user.email=x@x \
        commit -q -m $i --date=2020-01-0${i}T00:00:00Z
done && git gc -q && git fsck --full && git log --format=%H && cd .. && git clone -q --no-local a b && cd b &&
git fsck --full && git show HEAD~2:large | cksum; rm -rf $d";

/// Values of 24 B to 1 MiB; the second server reads the file that the first one has written in a child of fork.
const REDIS: &str = "\
d=$(mktemp -d)
ask() { redis-cli -s $d/socket \"$@\"; }
serve() {
    redis-server --port 0 --unixsocket $d/socket --dir $d --save '' --logfile $d/log &
    for i in $(seq 200); do ask ping > /dev/null 2>&1 && return; sleep 0.05; done
    cat $d/log; exit 1
}
values() { for i in $(seq 40); do echo get k$i; echo strlen k$i; done | ask | cksum; }
serve
ask eval \"for i = 1, 40 do redis.call('set', 'k' .. i, string.rep('value ' .. i, 80 * i * i)) end return 40\" 0
values
for i in $(seq 40); do
    echo setrange k$i $((i * 1000)) changed; echo append k$i \"$(seq $((i * 100)) | tr '\\n' ' ')\"; echo bitcount k$i
    echo copy k$i copy$i; echo rpush list \"$(seq $((i * 300)) | tr '\\n' ' ')\"
done | ask | cksum
values
ask lrange list 0 -1 | cksum
ask bgsave
until ask info persistence | grep -q rdb_bgsave_in_progress:0; do sleep 0.05; done
ask shutdown nosave
wait
serve
values
ask lrange list 0 -1 | cksum
ask shutdown nosave
wait
rm -r $d";
