/* One message file in two layers: a durable file that one writer appends to, and a cache of chunks and a length beside it that
 * several writers write, duel over, and lose. What a consumer reads from both.
 *
 * Invariants, checked in every state:
 *   every byte that a consumer gets is the one that was produced for its place in the file, and it gets them in order;
 *   a read comes as far as it was told that it can, or at least as far as the durable file goes;
 *   in the cluster of the producer (SOURCE): it comes all the way, and never past what was flushed.
 * And, with LIVE: whatever becomes of the cache, the consumer gets all bytes in the end.
 *
 * All bytes are there from the beginning; that a producer is slow is a writer that waits. Bytes come one at a time: a set of
 * more bytes leaves what several sets leave that nobody looks between. One consumer is enough, for it changes nothing. README.md,
 * beside this file, says what else is left out and what to run. A BROKEN_ switch takes one rule away.
 */

#ifndef CHUNKS
#define CHUNKS 2
#endif
#ifndef CHUNK
#define CHUNK 2         /* bytes of a chunk, at most 7 */
#endif
#ifndef WRITERS
#define WRITERS 2       /* of the cache, at most 4 */
#endif
#ifndef SPAN
#define SPAN 2          /* how many chunks one read goes over, at most */
#endif

#if defined(BROKEN_GOES_ON) || defined(BROKEN_NOT_FROM_START) || defined(BROKEN_TWO_SIZES)
#define TELL_APART      /* one of the writers is not like the others */
#endif

#define BYTES (CHUNKS * CHUNK)
#define begin_of(number) ((number) * CHUNK)
#define least(a, b) (((a) < (b)) -> (a) : (b))
#define top(a, b) (((a) > (b)) -> (a) : (b))
#define in(bits, i) (((bits) >> (i)) & 1)

/* To see that what is checked can happen at all: REACH=n makes it an error that n does. */
#ifdef REACH
#define HAPPENS(n, when) assert(REACH != n || !(when))
#else
#define HAPPENS(n, when) skip
#endif

/* A chunk has three replicas. A quorum has one value, the third has the same, an older one, one that never came to a quorum, or
   none. Of a value matter its size, 0 if there is none, and how many of its bytes, from the start, are right for their places. */
typedef Chunk {
    unsigned agreed : 3;
    unsigned agreed_right : 3;
#ifndef NO_LAG
    unsigned third : 3;
    unsigned third_right : 3
#endif
}
Chunk chunk[CHUNKS];

byte told;              /* the length in the cache; 0: there is none, or none that is news to the consumer */
byte durable;           /* the length of the file */

/* A writer has written all bytes below `at` to the cache, or they were in the file when it went there; of the chunk after that
   of `at` it has written `ahead` bytes: chunks are written in parallel, each of them from its start, in order. */
typedef Writer {
    byte at;
    byte ahead;
#ifdef BROKEN_GOES_ON
    byte wrong;         /* from here on its bytes are not those of the file; 0: all are */
#endif
#ifdef BROKEN_NOT_FROM_START
    byte lacks;         /* bytes at the start of the chunk of `at` that it does not have */
#endif
}
Writer writer[WRITERS];
#define NEXT(i) (writer[i].at / CHUNK + 1)

byte got;               /* bytes that the consumer has */
byte phase;             /* of its read. 0: none. 1: relaxed. 2: consistent. 3: the durable file */
byte end;               /* where its read is to end */
byte now;               /* the chunk that it reads next */
byte missing;           /* bits: chunks that it does not have enough of */
bool lagging;            /* one of them is there, but has too few bytes */

byte x, y, z;           /* used within a step only */

/* What cannot be told apart is made the same. Nobody looks at chunks that the consumer is past: what a writer does there is as
   good as done. A length that is no news is as good as none. Writers are alike. */
inline forget() {
    x = 0;
    do
    :: x < got / CHUNK ->
        chunk[x].agreed = 0; chunk[x].agreed_right = 0;
#ifndef NO_LAG
        chunk[x].third = 0; chunk[x].third_right = 0;
#endif
        x++
    :: else -> break
    od;
    told = ((told <= got) -> 0 : told);
    x = 0;
    do
    :: x < WRITERS ->
        if
        :: NEXT(x) > got / CHUNK -> skip
        :: NEXT(x) == got / CHUNK -> writer[x].at = begin_of(got / CHUNK) + writer[x].ahead; writer[x].ahead = 0
        :: else -> writer[x].at = begin_of(got / CHUNK); writer[x].ahead = 0
        fi;
#ifdef BROKEN_NOT_FROM_START
        writer[x].lacks = ((writer[x].at % CHUNK != 0) -> writer[x].lacks : 0);
#endif
        x++
    :: else -> break
    od;
    sort()
}

inline sort() {
#ifndef TELL_APART
    x = 0;
    do
    :: x + 1 < WRITERS ->
        if
        :: writer[x].at < writer[x + 1].at || (writer[x].at == writer[x + 1].at && writer[x].ahead < writer[x + 1].ahead) ->
            y = writer[x].at; writer[x].at = writer[x + 1].at; writer[x + 1].at = y;
            y = writer[x].ahead; writer[x].ahead = writer[x + 1].ahead; writer[x + 1].ahead = y;
            x = ((x > 0) -> x - 1 : 0)
        :: else -> x++
        fi
    :: else -> break
    od;
#endif
    x = 0; y = 0
}

/* ---- the cache ---- */

/* Writer i sets a chunk that it has this much of: z is the value's size, y how much of it is right. */
inline value(i, number, size) {
    z = size;
    y = size;
#ifdef BROKEN_GOES_ON
    if
    :: writer[i].wrong != 0 && writer[i].wrong < begin_of(number) + size ->
        y = top(writer[i].wrong, begin_of(number)) - begin_of(number)
    :: else -> skip
    fi;
#endif
#ifdef BROKEN_NOT_FROM_START
    if
    :: number == writer[i].at / CHUNK && writer[i].lacks -> z = size - writer[i].lacks; y = 0
    :: else -> skip
    fi;
#endif
#ifdef BROKEN_TWO_SIZES
    if
    :: i == 0 && number > 0 -> y = 0
    :: else -> skip
    fi;
#endif
    HAPPENS(1, z < chunk[number].agreed);                       /* a shorter value takes the place of a longer one */
    HAPPENS(2, number > writer[i].at / CHUNK)                   /* a chunk is written before the one below it is full */
}

#define STORE_AGREED(number) chunk[number].agreed = z; chunk[number].agreed_right = y
#ifdef NO_LAG
#define STORE_THIRD(number) skip
#define KEEP_AS_THIRD(number) skip
#else
#define STORE_THIRD(number) chunk[number].third = z; chunk[number].third_right = y
#define KEEP_AS_THIRD(number) chunk[number].third = chunk[number].agreed; chunk[number].third_right = chunk[number].agreed_right
#endif

/* How a set may end: all three have the value; all but the third; all but one that belonged to the quorum before; one has it,
   and the writer does not know. Then it may try again, also with more bytes, or go to where the file stands. */
#define SET(i, number, size, may, advance) \
    :: d_step { may; value(i, number, size); STORE_AGREED(number); STORE_THIRD(number); \
        printf("writer %d sets chunk %d to %d bytes\n", i, number, z); advance; settle() } \
    SET_LAGGING(i, number, size, may, advance) \
    SET_UNCONFIRMED(i, number, size, may)
#ifdef NO_LAG
#define SET_LAGGING(i, number, size, may, advance)
#define SET_UNCONFIRMED(i, number, size, may)
#else
#define SET_LAGGING(i, number, size, may, advance) \
    :: d_step { may; value(i, number, size); STORE_AGREED(number); \
        printf("writer %d sets chunk %d to %d bytes; one replica still has %d\n", i, number, z, chunk[number].third); \
        advance; settle() } \
    :: d_step { may; value(i, number, size); KEEP_AS_THIRD(number); STORE_AGREED(number); \
        printf("writer %d sets chunk %d to %d bytes; another replica still has %d\n", i, number, z, chunk[number].third); \
        advance; settle() }
#ifdef NO_FAILED_SETS
#define SET_UNCONFIRMED(i, number, size, may)
#else
#define SET_UNCONFIRMED(i, number, size, may) \
    :: d_step { may; value(i, number, size); STORE_THIRD(number); \
        printf("writer %d sets chunk %d to %d bytes, and fails: one replica has it\n", i, number, z); settle() }
#endif
#endif

inline settle() { y = 0; z = 0; sort() }

#ifdef NO_LOSS
#define LOSE(number)
#define LOSE_LENGTH
#else
#ifdef NO_LAG
#define LOSE_THIRD(number)
#else
#define LOSE_THIRD(number) \
    :: d_step { number < CHUNKS && chunk[number].third; \
        printf("one replica loses chunk %d\n", number); chunk[number].third = 0; chunk[number].third_right = 0 }
#endif
#define LOSE(number) \
    :: d_step { number < CHUNKS && chunk[number].agreed; \
        printf("no quorum has chunk %d any more\n", number); chunk[number].agreed = 0; chunk[number].agreed_right = 0 } \
    LOSE_THIRD(number)
#define LOSE_LENGTH \
    :: d_step { told; printf("the length is lost\n"); told = 0 }
#endif

/* ---- writers of the cache ---- */

inline advance_at(i) {
    writer[i].at++;
    if
    :: writer[i].at % CHUNK == 0 ->
        writer[i].at = writer[i].at + writer[i].ahead; writer[i].ahead = 0;
#ifdef BROKEN_NOT_FROM_START
        writer[i].lacks = 0
#endif
    :: else -> skip
    fi
}

inline advance_ahead(i) { writer[i].ahead++ }

#if defined(SOURCE) && !defined(BROKEN_CACHE_BEFORE_FLUSH)
#define HAS(position) ((position) < durable)    /* what is shadowed was flushed */
#else
#define HAS(position) ((position) < BYTES)
#endif
#ifdef IN_ORDER
#define MAY_AHEAD(i) false
#else
#define MAY_AHEAD(i) (writer[i].ahead < CHUNK && HAS(begin_of(NEXT(i)) + writer[i].ahead))
#endif

/* After an outage, or when it begins: it goes on in the chunk where the file stands, which it will write from its start. */
inline jump(i) {
    printf("writer %d goes on at %d, where the file stands\n", i, durable);
    HAPPENS(3, writer[i].at > 0);
    writer[i].at = durable; writer[i].ahead = 0;
#ifdef BROKEN_NOT_FROM_START
    writer[i].lacks = durable % CHUNK;
#endif
    sort()
}

#ifdef BROKEN_LENGTH_FIRST
#define LENGTH(i) (writer[i].at + 1)
#else
#define LENGTH(i) writer[i].at
#endif

inline tell(i) {
    printf("writer %d tells %d\n", i, LENGTH(i));
    HAPPENS(4, LENGTH(i) < told);                               /* the length goes back */
    told = LENGTH(i)
}

#ifdef BROKEN_GOES_ON       /* a byte that never came to it is not noticed */
#define MISS(i) \
    :: d_step { i < WRITERS && writer[i].at < BYTES && !writer[i].wrong && writer[i].at; \
        printf("writer %d misses a byte at %d\n", i, writer[i].at); writer[i].wrong = writer[i].at }
#else
#define MISS(i)
#endif

#ifdef TELL_APART
#define FIRST_OF_ITS_KIND(i) true
#else
#define FIRST_OF_ITS_KIND(i) \
    (i == 0 || writer[i].at != writer[i - (i > 0)].at || writer[i].ahead != writer[i - (i > 0)].ahead)
#endif
#define WORKS(i) (got < BYTES && FIRST_OF_ITS_KIND(i))

#define WRITE(i) \
    SET(i, writer[i].at / CHUNK, writer[i].at % CHUNK + 1, WORKS(i) && writer[i].at < BYTES && HAS(writer[i].at), advance_at(i)) \
    SET(i, NEXT(i), writer[i].ahead + 1, WORKS(i) && NEXT(i) < CHUNKS && MAY_AHEAD(i), advance_ahead(i)) \
    :: d_step { WORKS(i) && durable > writer[i].at; jump(i) } \
    :: d_step { WORKS(i) && LENGTH(i) > got && LENGTH(i) <= BYTES && LENGTH(i) != told; tell(i) } \
    MISS(i)

active proctype Cache() {
end_cache:
    do
    WRITE(0)
#if WRITERS > 1
    WRITE(1)
#endif
#if WRITERS > 2
    WRITE(2)
#endif
#if WRITERS > 3
    WRITE(3)
#endif
    LOSE(0) LOSE(1) LOSE(2) LOSE(3)
    LOSE_LENGTH
#ifdef LIVE                 /* nobody has to write to the cache: file and consumer must do without */
    :: d_step { got < BYTES; skip }
#endif
    od
}

/* ---- the durable file ---- */

active proctype Durable() {
end_durable:
    do
    :: d_step { durable < BYTES; durable++; printf("the file has %d bytes\n", durable) }
    od
}

/* ---- the consumer ---- */

#define FIRST (got / CHUNK)
#define LAST ((end - 1) / CHUNK)
#define WANTED(number) least(CHUNK, end - begin_of(number))

inline begin_read(limit) {
    end = least(limit, begin_of(FIRST + SPAN));
    now = FIRST;
    phase = 1
}

inline take(size, right) {      /* enough of this chunk */
    printf("the consumer has chunk %d: %d bytes\n", now, size);
    assert(WANTED(now) <= right)
}

inline deliver(until) {
    printf("the consumer has got %d bytes of %d that it was told of; the file has %d\n", until, end, durable);
    assert(until == end || until >= durable);
#if defined(SOURCE) || defined(SURE)
    assert(until == end);
#endif
#ifdef SOURCE
    assert(until <= durable);
#endif
    HAPPENS(5, until > durable);                                /* the cache is ahead of the file, and is of use */
    got = until;
    phase = 0; end = 0; now = 0; missing = 0; lagging = false;
    forget()
}

inline relaxed(size, right) {
    if
#ifdef BROKEN_BELIEVES_SHORT
    :: size > 0 -> take(size, right)
#else
    :: size >= WANTED(now) -> take(size, right)
#endif
    :: else ->
        printf("the consumer asks one replica for %d bytes of chunk %d: it has %d\n", WANTED(now), now, size);
        missing = missing | (1 << now);
        lagging = lagging || size > 0
    fi;
    now++;
    if
    :: now <= LAST -> skip
    :: else ->
        now = 0;
        if
        :: missing == 0 -> deliver(end)
        :: else -> phase = 2; next_missing()
        fi
    fi
}

inline next_missing() {
    do
    :: now <= LAST && !in(missing, now) -> now++
    :: else -> break
    od
}

inline consistent() {
    if
    :: chunk[now].agreed >= WANTED(now) ->
        HAPPENS(6, true);                                       /* a quorum has what one replica has not */
        take(chunk[now].agreed, chunk[now].agreed_right);
        missing = missing & ~(1 << now)
    :: else -> printf("the consumer asks the quorum for %d bytes of chunk %d: it has %d\n", WANTED(now), now, chunk[now].agreed)
    fi;
    now++;
    next_missing();
    if
    :: now <= LAST -> skip
    :: else ->
        now = 0; lagging = false;
        if
        :: missing == 0 -> deliver(end)
        :: else -> phase = 3
        fi
    fi
}

/* One read of the file over all that is missing: from y on, up to z. What lies behind bytes that the file does not have yet is of
   no use. */
inline mend() {
    y = FIRST;
    do
    :: !in(missing, y) -> y++
    :: else -> break
    od;
    z = LAST;
    do
    :: !in(missing, z) -> z--
    :: else -> break
    od;
    HAPPENS(7, z < LAST && durable >= begin_of(z + 1));         /* the file mends a hole below a chunk that is cached */
    HAPPENS(8, z < LAST && durable < begin_of(z + 1));          /* it cannot: the chunk must not be delivered */
    y = top(begin_of(y), got);
    z = least(begin_of(z + 1), end);
#ifdef BROKEN_SHORT_FILE
    assert(z <= durable);       /* the bytes that it would take for those of the file are none */
    deliver(end);
#else
    if
    :: durable >= z -> y = 0; z = 0; deliver(end)
    :: else -> z = top(y, durable); y = 0; deliver(z); z = 0
    fi
#endif
}

/* Where nothing was found at all, the chunks may have left the cache long ago. A consumer that has seen this before does not
   trouble the quorum with it. */
#if defined(SURE) && !defined(BROKEN_LATE_TOO_SOON)
#define LATE false
#else
#define LATE true
#endif

#ifdef BROKEN_WAITS_FOR_CACHE
#define TURNS_TO_FILE false
#else
#define TURNS_TO_FILE (durable > got)
#endif

active proctype Consumer() {
end_consumer:
    do
    :: d_step { phase == 0 && told; begin_read(told) }
    :: d_step { phase == 0 && !told && TURNS_TO_FILE; begin_read(durable) }     /* the cache is behind it for too long */
    :: d_step { phase == 1; relaxed(chunk[now].agreed, chunk[now].agreed_right) }
#ifndef NO_LAG
    :: d_step { phase == 1 && chunk[now].third != chunk[now].agreed; relaxed(chunk[now].third, chunk[now].third_right) }
#endif
    :: d_step { phase == 2; consistent() }
    :: d_step { phase == 2 && now == FIRST && !lagging && LATE; now = 0; phase = 3 }
    :: d_step { phase == 3; mend() }
    od
}

#ifdef LIVE                 /* a run in which it never has all bytes, though file and consumer go on whenever they can */
never {
accept:
    do
    :: got < BYTES
    od
}
#endif
