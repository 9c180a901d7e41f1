/* One key of a cell with three replicas and quorums of two (R=3.2): what a consistent GET may return.
 *
 * Invariants, checked in every state:
 *   a hit returns a version no lower than any that had completed, or that another GET had returned, when it began;
 *   a mutation that nobody had applied when a higher version completed does not complete;
 *   a CAS that anyone can see had nothing between the version that it expected and its own.
 * Keys do not touch each other, except that they share a replica's summary, start and fence.
 *
 * A mutation *is* its version: a number from 1 to VERSIONS that stands for (clock, client, sequence). Its message may reach a
 * replica at any time, a second time, or never, and before or after that of any other. So clocks are as wrong as they like, a
 * retry after STALE is one more number, and losing a message is not delivering it. README.md, beside this file, says what
 * else is left out and what to run. A BROKEN_ switch takes one rule of the protocol away.
 */

#ifndef VERSIONS
#define VERSIONS 3      /* mutations of the key, at most 5 */
#endif
#ifndef CRASHES
#define CRASHES 0       /* how many failures one run has */
#endif
#ifndef FRAGILE
#define FRAGILE 7       /* bits: replicas that may fail */
#endif
#ifndef PULLERS
#define PULLERS 0       /* bits: replicas that repair themselves */
#endif
#ifndef DROPPERS
#define DROPPERS 7      /* bits: replicas that evict, and whose tombstone cache overflows */
#endif
#ifndef KINDS
#define KINDS 3         /* sum: mutations are SET, ERASE, CAS */
#endif

#ifdef PLAN             /* the rules before this model: docs/decisions/quorum.md */
#define BROKEN_NO_START
#define BROKEN_NO_FENCE
#define BROKEN_CAS_SPREADS
#define INSTANCES
#endif

#define SET 1
#define ERASE 2
#define CAS 4           /* expects version 1, which is a SET */

/* To see that what is checked can happen at all: REACH=n makes it an error that n does. */
#ifdef REACH
#define HAPPENS(n, when) assert(REACH != n || !(when))
#else
#define HAPPENS(n, when) skip
#endif

#define in(bits, i) (((bits) >> (i)) & 1)
#define top(a, b) (((a) > (b)) -> (a) : (b))
#define LEFT(i) (((i) + 1) % 3)
#define RIGHT(i) (((i) + 2) % 3)

typedef Mutation {
    unsigned kind : 3;          /* 0: not chosen yet, for nobody has applied it */
    unsigned acks : 4           /* bits: replicas that told the client "applied"; or EVERY; with LATE or without */
}
Mutation mutation[VERSIONS + 1];
#define EVERY 7                 /* completed; or lower than one that did, so that it matters no more whether it completes */
#define LATE 8                  /* nobody had applied it when a higher version completed */

typedef Backend {
    unsigned down : 1;          /* its memory can still be read, until its successor revokes it */
    unsigned stored : 3;        /* version in the index; 0: not stored */
    unsigned tomb : 3;          /* version in the tombstone cache */
    unsigned summary : 3;       /* the highest version ever dropped without a trace */
    unsigned start : 3;         /* at or above all that was applied anywhere before this instance began: its clock says so */
    unsigned fence : 3;         /* the highest start among those who listed this replica */
    /* Its repair. Stage 0: rests. 1: has one list. 2: has both, and has decided. */
    unsigned stage : 2;
    unsigned asked : 2;         /* 1: whose list it has */
    unsigned version_seen : 3;  /* 1: stored there.    2: the version to install, or 0 */
    unsigned tomb_seen : 3;     /* 1: tombstone there. 2: the version to erase at, or 0 */
    unsigned summary_seen : 3   /* 1: summary there */
}
Backend replica[3];

byte done;                  /* the highest version that completed or was returned */
byte highest;               /* the highest version that any replica ever applied: what every clock is known to have passed */
byte crashes;

/* One GET at a time: it changes nothing, so others beside it would see no more. */
byte voter;                 /* whose index entry it has, plus 1; 0: it has none */
byte vote;                  /* the version in that entry */
bool outdated;              /* a hit would be wrong: a higher version was done when it began */

byte low;                   /* used within a step only, like the next */
byte between;

#ifdef INSTANCES            /* a restarted replica refuses what was meant for its predecessor */
byte predecessors[VERSIONS + 1];    /* bits: replicas that failed since this mutation began */
#define MEANT(i, v) (!in(predecessors[v], i))
#else
#define MEANT(i, v) true
#endif

#ifdef REPAIR_BEFORE_NEXT_CRASH
bool mending[3];            /* restarted, and not repaired yet */
#define STEADY (!replica[0].down && !replica[1].down && !replica[2].down && !mending[0] && !mending[1] && !mending[2])
#else
#define STEADY true
#endif

#if KINDS & 4
byte visible;               /* bits: versions that completed or were returned */
#endif

#ifdef MEMORY               /* replica 0 keeps its entries in two data slots, and the GET takes its value from there */
#define OTHER (VERSIONS + 1)
byte header[2];             /* version in the slot's header; OTHER: of another key */
bool whole[2];              /* its sum is right */
bit place;                  /* the slot that the index entry names */
byte writing;               /* the version that is being written, or 0 */
bit spot;                   /* the slot that it is being written to */
bit pointer;                /* the GET's: the slot that its index entry names */
bool fetched, agreed;       /* the GET has valid data; it has a second index entry with the same version */
#define BUSY(i) (i == 0 && writing != 0)
#else
#define BUSY(i) false
#endif

#ifdef BROKEN_NOT_REVOKED
byte relic[3];              /* the version in the memory that a failed instance left behind; 0: none */
#endif

#ifdef RACE
byte seen[3];               /* the GET's: version in each replica's index, plus 1; 0: not read yet */
#endif

#ifdef PUSH_REPAIR          /* the paper's repair, once; the highest version is the one that it makes up */
#define MADE_UP VERSIONS
#define CLIENT_VERSIONS (VERSIONS - 1)
byte copied;                /* the version whose value it copies; 0: not begun */
byte todo;                  /* bits: replicas that it still has to change */
byte patient;               /* the replica that it repairs */
byte worth[3];              /* of a replica that stores MADE_UP: the version that its value was set at */
#else
#define CLIENT_VERSIONS VERSIONS
#endif

/* ---- clients ---- */

inline forget_get() {
    voter = 0; vote = 0; outdated = false;
#ifdef MEMORY
    pointer = 0; fetched = false; agreed = false;
#endif
#ifdef RACE
    seen[0] = 0; seen[1] = 0; seen[2] = 0;
#endif
}

inline settle(v) {          /* v completed, or was returned by a GET */
    if
    :: v > done ->
        done = v;
        low = 1;
        do
        :: low < done ->
            if
            :: mutation[low].acks == 0 -> mutation[low].acks = LATE
#if !(KINDS & 4)
            :: mutation[low].acks > 0 && mutation[low].acks < EVERY -> mutation[low].acks = EVERY
#endif
            :: else -> skip
            fi;
            low++
        :: else -> break
        od
    :: else -> skip
    fi;
#if !defined(MEMORY) && !(KINDS & 4)
    if
    :: voter != 0 && !outdated && vote <= done -> forget_get()     /* its hit would tell nothing new */
    :: else -> skip
    fi;
#endif
#if KINDS & 4
    visible = visible | (1 << (v));
    low = 2;
    between = false;
    do
    :: low <= VERSIONS ->
        if
        :: in(visible, low) -> assert(!(mutation[low].kind == CAS && between)); between = true
        :: else -> skip
        fi;
        low++
    :: else -> break
    od;
#endif
    low = 0; between = false
}

inline acknowledge(i, v) {  /* the client hears it at once: later would only make its mutation complete later */
    if
    :: (mutation[v].acks & EVERY) == EVERY -> skip
    :: else ->
        mutation[v].acks = mutation[v].acks | (1 << (i));
        if
        :: (mutation[v].acks & EVERY) == 3 || (mutation[v].acks & EVERY) == 5 || (mutation[v].acks & EVERY) == 6 ->
            printf("  version %d has completed\n", v);
            assert(!(mutation[v].acks & LATE));
            mutation[v].acks = EVERY;
            settle(v)
        :: else -> skip
        fi
    fi
}

#ifdef PUSH_REPAIR
#define VALUE_AT(i) ((replica[i].stored == MADE_UP) -> worth[i] : replica[i].stored)
#else
#define VALUE_AT(i) replica[i].stored
#endif

inline hit() {
    printf("GET returns the value that was set at version %d; it must not be older than %d\n", vote, done);
    assert(!outdated);
    assert(mutation[vote].kind != ERASE);
    /* on what a restarted replica got back */
    HAPPENS(1, replica[voter - 1].stored == vote && replica[voter - 1].start >= vote);
#if !defined(PUSH_REPAIR) && !defined(COMPLETED_ONLY)
    settle(vote);
#endif
    forget_get()
}

#ifdef RACE                 /* all three index entries, in any order: two of them agree */

#define EQUAL(i, j) (seen[i] != 0 && seen[i] == seen[j])

#define READ(i) \
    :: d_step { !seen[i]; seen[i] = replica[i].stored + 1; printf("GET reads %d in the index of %d\n", replica[i].stored, i) }
#define GET \
    READ(0) READ(1) READ(2) \
    :: d_step { seen[0] && seen[1] && seen[2]; assert(EQUAL(0, 1) || EQUAL(1, 2) || EQUAL(0, 2)); forget_get() }

#else

/* It begins with its first index entry: had it begun earlier, less would have been done by then. */
inline ask(i) {
    voter = (i) + 1;
    vote = replica[i].stored;
    printf("GET reads %d in the index of %d\n", vote, i);
#ifdef PUSH_REPAIR
    outdated = VALUE_AT(i) < done;
#else
    outdated = vote < done;
#endif
#ifdef MEMORY
    pointer = place;
#endif
#ifdef BROKEN_READ_ONE
    hit();
#endif
}

inline compare(i) {
    printf("GET reads %d in the index of %d\n", vote, i);
#ifdef MEMORY
    agreed = true
#else
    hit()
#endif
}

#ifdef MEMORY
#ifdef BROKEN_NO_SUM
#define SUM_PROVES true
#else
#define SUM_PROVES whole[pointer]
#endif
#ifdef BROKEN_NO_VERSION_CHECK
#define VERSION_PROVES true
#else
#define VERSION_PROVES (header[pointer] == vote)
#endif

inline fetch() {
    printf("GET copies from slot %d what was set at %d, whole: %d\n", pointer, header[pointer], whole[pointer]);
    assert(header[pointer] == vote && whole[pointer]);
    fetched = true
}
#endif

#if defined(MEMORY) || defined(PUSH_REPAIR)
#define NEWS(i) (replica[i].stored != 0)
#else
#define NEWS(i) (replica[i].stored != 0 && replica[i].stored != done)  /* to return what is done changes nothing */
#endif
#define ASK(i) \
    :: d_step { voter == 0 && NEWS(i); ask(i) }
#define DIFFERENT(i) (voter != 0 && voter != i + 1)
#define COMPARE(i) \
    :: d_step { DIFFERENT(i) && replica[i].stored == vote; compare(i) }
#ifdef BROKEN_NOT_REVOKED
#define COMPARE_RELIC(i) \
    :: d_step { DIFFERENT(i) && relic[i] == vote; compare(i) }
#else
#define COMPARE_RELIC(i)
#endif
#define GIVE_UP             /* a miss, or no two agree, or it takes too long */ \
    :: d_step { voter != 0; forget_get() }

#ifdef MEMORY
#define GET \
    ASK(0) COMPARE(1) COMPARE(2) GIVE_UP \
    :: d_step { voter != 0 && !fetched && SUM_PROVES && VERSION_PROVES; fetch() } \
    :: d_step { fetched && agreed; hit() }
#else
#define GET \
    ASK(0) ASK(1) ASK(2) COMPARE(0) COMPARE(1) COMPARE(2) COMPARE_RELIC(0) COMPARE_RELIC(1) COMPARE_RELIC(2) GIVE_UP
#endif

#endif

/* ---- replicas ---- */

#ifdef BROKEN_LATE_SET
#define FLOOR(i) replica[i].stored
#else
#define FLOOR(i) ((replica[i].stored != 0) -> replica[i].stored : top(replica[i].tomb, replica[i].summary))
#endif
#define GATE(i) top(replica[i].start, replica[i].fence)         /* for mutations of clients, not for repairs */

#define OPEN(i, v) (!replica[i].down && !BUSY(i) && (v) > GATE(i) && MEANT(i, v))
#define MAY_BE(v, what) ((KINDS & what) && (mutation[v].kind == 0 || mutation[v].kind == what))
#define TAKES(i, v, what) (OPEN(i, v) && MAY_BE(v, what) && (v) > FLOOR(i))
#ifdef BROKEN_CAS_BY_HOME   /* replica 0 alone compares, and what it took is then set at the others */
#define FITS(i, v) (replica[i].stored == 1 || (i != 0 && in(mutation[v].acks, 0)))
#else
#define FITS(i, v) (replica[i].stored == 1)
#endif
/* A repair was faster than the message. Calling this applied makes more mutations complete, so more must hold. */
#define THERE(i, v) (((mutation[v].kind == ERASE) -> replica[i].tomb : replica[i].stored) == (v))

/* A summary at or below the version beside it says nothing: forgetting it makes fewer states. */
inline note(i, v) {
#ifndef LIST_IN_PARTS
    replica[i].summary = ((replica[i].summary > (v)) -> replica[i].summary : 0);
#endif
#ifdef OTHER_KEYS
    highest = top(highest, v);
#elif CRASHES
    highest = ((crashes < CRASHES || replica[0].down || replica[1].down || replica[2].down) -> top(highest, v) : 0);
#endif
}

inline store(i, v) {
    replica[i].stored = v;
#if !defined(LIST_IN_PARTS) || defined(BROKEN_SET_DROPS_TOMBSTONE)
    replica[i].tomb = 0;    /* the version beside it is higher. But who lists keys first would see neither */
#endif
    note(i, v)
}

inline erase(i, v) { replica[i].stored = 0; replica[i].tomb = v; note(i, v) }

inline apply_erase(i, v) {
    printf("replica %d applies ERASE %d\n", i, v);
    mutation[v].kind = ERASE; erase(i, v); acknowledge(i, v)
}

inline apply_set(i, v) {
    printf("replica %d applies SET %d\n", i, v);
    mutation[v].kind = SET; store(i, v); acknowledge(i, v)
}

inline apply_cas(i, v) {
    printf("replica %d applies CAS %d, which expects 1\n", i, v);
    mutation[v].kind = CAS; store(i, v); acknowledge(i, v)
}

inline confirm(i, v) {
    printf("replica %d says that it has %d already\n", i, v);
    HAPPENS(4, true);                                           /* a repair was faster than a message */
    acknowledge(i, v)
}

#ifdef MEMORY
/* Writing an entry takes two steps. After the first its header is still the old one and its value is mixed. */
inline begin_set(v, where) {
    printf("replica 0 begins to write %d to slot %d\n", v, where);
    mutation[v].kind = SET; writing = v; spot = where; whole[where] = false
}

inline end_set() {          /* the entry is whole; then the index names it */
    header[spot] = writing; whole[spot] = true; place = spot; spot = 0;
    apply_set(0, writing);
    writing = 0
}

inline reuse(where) {
    printf("replica 0 puts another key to slot %d\n", where);
    header[where] = OTHER; whole[where] = true
}

#ifdef IN_PLACE             /* the sum and the version forgive even that an entry is written over while it is named */
#define FREE(where) true
#else
#define FREE(where) (replica[0].stored == 0 || place != where)
#endif
#define RECEIVE_SET(i, v) \
    :: d_step { i == 0 && TAKES(0, v, SET) && FREE(0); begin_set(v, 0) } \
    :: d_step { i == 0 && TAKES(0, v, SET) && FREE(1); begin_set(v, 1) } \
    :: d_step { i != 0 && TAKES(i, v, SET); apply_set(i, v) }
#else
#define RECEIVE_SET(i, v) \
    :: d_step { TAKES(i, v, SET); apply_set(i, v) }
#endif

#define RECEIVE(i, v) \
    RECEIVE_SET(i, v) \
    :: d_step { TAKES(i, v, ERASE); apply_erase(i, v) } \
    :: d_step { TAKES(i, v, CAS) && FITS(i, v); apply_cas(i, v) } \
    :: d_step { OPEN(i, v) && THERE(i, v) && !in(mutation[v].acks, i); confirm(i, v) }

inline evict(i) {
    printf("replica %d evicts %d\n", i, replica[i].stored);
#ifndef BROKEN_EVICTION_LEAVES_NO_SUMMARY
    replica[i].summary = top(replica[i].summary, replica[i].stored);
#endif
    replica[i].stored = 0
}

inline overflow(i) {        /* a tombstone leaves its cache */
    printf("replica %d drops tombstone %d\n", i, replica[i].tomb);
#ifndef BROKEN_TOMBSTONE_LEAVES_NO_SUMMARY
    replica[i].summary = top(replica[i].summary, replica[i].tomb);
#endif
    replica[i].tomb = 0
}

inline rest(i) {
    replica[i].stage = 0; replica[i].asked = 0;
    replica[i].version_seen = 0; replica[i].tomb_seen = 0; replica[i].summary_seen = 0
}

inline crash(i) {
    printf("replica %d fails\n", i);
    crashes++;
    replica[i].down = true; replica[i].tomb = 0; replica[i].summary = 0; replica[i].start = 0; replica[i].fence = 0;
    rest(i);
#ifdef MEMORY
    writing = 0; spot = 0;
#endif
#ifdef INSTANCES
    low = 1;
    do
    :: low <= VERSIONS ->
        if
        :: mutation[low].acks & EVERY -> predecessors[low] = predecessors[low] | (1 << (i))
        :: else -> skip
        fi;
        low++
    :: else -> break
    od;
    low = 0;
#endif
}

inline restart(i) {
    printf("replica %d is back, empty\n", i);
#ifdef BROKEN_NOT_REVOKED
    relic[i] = replica[i].stored;
#endif
    replica[i].down = false; replica[i].stored = 0;
#ifndef BROKEN_NO_START
#ifdef BROKEN_CLOCK
    replica[i].start = ((highest > 0) -> highest - 1 : 0);
#else
    replica[i].start = highest;
#endif
#endif
    note(i, 0);
#ifdef REPAIR_BEFORE_NEXT_CRASH
    mending[i] = true;
#endif
}

/* ---- repair ---- */

#ifdef BROKEN_START_NOT_LISTED
#define LISTED_SUMMARY(j) replica[j].summary
#else
#define LISTED_SUMMARY(j) top(replica[j].summary, replica[j].start)
#endif
#ifdef BROKEN_REPAIR_IGNORES_SUMMARY
#define PERMITS(v, there, tombstone, dropped) ((there) != 0 || (v) > (tombstone))
#else
#define PERMITS(v, there, tombstone, dropped) ((there) != 0 || ((v) > (tombstone) && (v) > (dropped)))
#endif
#ifdef BROKEN_CAS_SPREADS
#define SURE(v, one, two) true
#else
#define SURE(v, one, two) (mutation[v].kind != CAS || (one) == (two))
#endif

/* Before a replica is listed it is told the lister's start. From then on it lets in no mutation that the lister's predecessor
   may have acknowledged, and it forgets the lists that it had taken for itself: they may have come from that predecessor. */
#ifdef BROKEN_NO_FENCE
#define FENCED(i, j) true
#else
#define FENCED(i, j) (replica[i].start <= GATE(j))
#endif

inline raise_fence(i, j) {
    printf("replica %d tells %d that it began at %d\n", i, j, replica[i].start);
    replica[j].fence = replica[i].start;
#ifndef BROKEN_FENCE_KEEPS_LISTS
    rest(j)
#endif
}

inline finish(i) {          /* by ordinary versioned mutations, but START does not count */
    if
    :: replica[i].version_seen > FLOOR(i) ->
        printf("replica %d installs %d\n", i, replica[i].version_seen);
        HAPPENS(2, replica[i].version_seen == 2 && mutation[2].kind == CAS);         /* a CAS is repaired */
        low = replica[i].version_seen;
        store(i, low)
    :: else ->
        if
        :: replica[i].stored != 0 && replica[i].tomb_seen > replica[i].stored ->
            printf("replica %d erases at %d\n", i, replica[i].tomb_seen);
            HAPPENS(3, true);                                   /* a repair erases */
            low = replica[i].tomb_seen;
            erase(i, low)
        :: else -> skip
        fi
    fi;
#ifdef REPAIR_BEFORE_NEXT_CRASH
    mending[i] = false;
#endif
    low = 0;
    rest(i)
}

#define CAN_ASK(i, j) (in(PULLERS, i) && !replica[i].down && !replica[j].down)

inline first_list(i, j) {
    printf("replica %d lists %d: stored %d", i, j, replica[j].stored);
    printf(", tombstone %d, summary %d\n", replica[j].tomb, LISTED_SUMMARY(j));
    replica[i].stage = 1; replica[i].asked = j;
    replica[i].version_seen = replica[j].stored; replica[i].tomb_seen = replica[j].tomb;
    replica[i].summary_seen = ((replica[j].stored != 0) -> 0 : LISTED_SUMMARY(j));
#ifdef BROKEN_REPAIR_FROM_ONE
    replica[i].stage = 2; replica[i].asked = 0; replica[i].summary_seen = 0;
#endif
}

inline half_list(i, j) {    /* keys first, tombstones and summary later */
    printf("replica %d lists %d: stored %d\n", i, j, replica[j].stored);
    replica[i].stage = 3; replica[i].asked = j; replica[i].version_seen = replica[j].stored
}

inline other_half(i, j) {
    printf("replica %d lists %d: tombstone %d, summary %d\n", i, j, replica[j].tomb, LISTED_SUMMARY(j));
    replica[i].stage = 1;
    replica[i].tomb_seen = replica[j].tomb;
    replica[i].summary_seen = ((replica[i].version_seen != 0) -> 0 : LISTED_SUMMARY(j))
}

inline second_list(i, j) {
    printf("replica %d lists %d: stored %d", i, j, replica[j].stored);
    printf(", tombstone %d, summary %d\n", replica[j].tomb, LISTED_SUMMARY(j));
    low = top(replica[i].version_seen, replica[j].stored);
    if
    :: low == 0 ->          /* neither stores it: the newest tombstone counts */
        replica[i].tomb_seen = top(replica[i].tomb_seen, replica[j].tomb)
    :: else ->
        if
        :: !PERMITS(low, replica[i].version_seen, replica[i].tomb_seen, replica[i].summary_seen) -> low = 0
        :: !PERMITS(low, replica[j].stored, replica[j].tomb, LISTED_SUMMARY(j)) -> low = 0
        :: !SURE(low, replica[i].version_seen, replica[j].stored) -> low = 0
        :: else -> skip
        fi;
        replica[i].tomb_seen = 0
    fi;
    replica[i].version_seen = low; low = 0;
    replica[i].stage = 2; replica[i].asked = 0; replica[i].summary_seen = 0;
    if                      /* floors only rise, so what is not above them now will change nothing later */
    :: replica[i].version_seen <= FLOOR(i) && replica[i].tomb_seen <= FLOOR(i) -> finish(i)
    :: else -> skip
    fi
}

#ifdef PUSH_REPAIR
/* The paper's: one replica lacks the key or has an older version, and the other two agree. Set it there at a new version, and
   raise the version of the other two. The steps are messages like any others. PUSH_CAREFULLY raises only what was copied. */
#define PAIR(i) ((replica[LEFT(i)].stored == replica[RIGHT(i)].stored) -> replica[LEFT(i)].stored : 0)
#define DIRTY(i) (PAIR(i) > replica[i].stored && PAIR(i) > replica[i].tomb && PAIR(i) != MADE_UP)
#ifdef PUSH_CAREFULLY
#define RAISABLE(i) (replica[i].stored == copied)
#else
#define RAISABLE(i) (replica[i].stored != 0 && replica[i].stored < MADE_UP)
#endif
#define PUSH(i) \
    :: d_step { copied == 0 && DIRTY(i); \
        copied = PAIR(i); todo = 7; patient = i; \
        printf("a repairer decides to copy %d to replica %d, at version %d\n", copied, i, MADE_UP) } \
    :: d_step { in(todo, i) && patient == i; \
        todo = todo & ~(1 << (i)); \
        if \
        :: MADE_UP > FLOOR(i) -> printf("replica %d is repaired\n", i); store(i, MADE_UP); worth[i] = copied \
        :: else -> skip \
        fi } \
    :: d_step { in(todo, i) && patient != i; \
        todo = todo & ~(1 << (i)); \
        if \
        :: RAISABLE(i) -> \
            printf("replica %d calls its value of version %d now %d\n", i, replica[i].stored, MADE_UP); \
            worth[i] = replica[i].stored; store(i, MADE_UP) \
        :: else -> skip \
        fi }
#else
#define PUSH(i)
#endif

/* ---- all that can happen ---- */

#if CLIENT_VERSIONS == 1
#define RECEIVE_ANY(i) RECEIVE(i, 1)
#elif CLIENT_VERSIONS == 2
#define RECEIVE_ANY(i) RECEIVE(i, 1) RECEIVE(i, 2)
#elif CLIENT_VERSIONS == 3
#define RECEIVE_ANY(i) RECEIVE(i, 1) RECEIVE(i, 2) RECEIVE(i, 3)
#elif CLIENT_VERSIONS == 4
#define RECEIVE_ANY(i) RECEIVE(i, 1) RECEIVE(i, 2) RECEIVE(i, 3) RECEIVE(i, 4)
#else
#define RECEIVE_ANY(i) RECEIVE(i, 1) RECEIVE(i, 2) RECEIVE(i, 3) RECEIVE(i, 4) RECEIVE(i, 5)
#endif

#define DROP(i) \
    :: d_step { in(DROPPERS, i) && !replica[i].down && !BUSY(i) && replica[i].stored != 0; evict(i) } \
    :: d_step { in(DROPPERS, i) && !replica[i].down && !BUSY(i) && replica[i].tomb != 0; overflow(i) }

#ifdef OTHER_KEYS           /* a key that is not modelled is dropped */
#define DROP_OTHER(i) \
    :: d_step { in(DROPPERS, i) && !replica[i].down && replica[i].summary < highest; replica[i].summary++ }
#else
#define DROP_OTHER(i)
#endif

#if CRASHES
#define FAIL(i) \
    :: d_step { crashes < CRASHES && in(FRAGILE, i) && !replica[i].down && STEADY; crash(i) } \
    :: d_step { replica[i].down; restart(i) }
#else
#define FAIL(i)
#endif

#if PULLERS
#ifdef LIST_IN_PARTS
#define ASK_ONE(i, j) \
    :: d_step { CAN_ASK(i, j) && FENCED(i, j) && replica[i].stage == 0; half_list(i, j) } \
    :: d_step { CAN_ASK(i, j) && FENCED(i, j) && replica[i].stage == 3 && replica[i].asked == j; other_half(i, j) }
#else
#define ASK_ONE(i, j) \
    :: d_step { CAN_ASK(i, j) && FENCED(i, j) && replica[i].stage == 0; first_list(i, j) }
#endif
#define ASK_OTHER(i, j) \
    :: d_step { CAN_ASK(i, j) && !FENCED(i, j); raise_fence(i, j) } \
    ASK_ONE(i, j) \
    :: d_step { CAN_ASK(i, j) && FENCED(i, j) && replica[i].stage == 1 && replica[i].asked != j; second_list(i, j) }
#define PULL(i) \
    ASK_OTHER(i, LEFT(i)) \
    ASK_OTHER(i, RIGHT(i)) \
    :: d_step { replica[i].stage == 1; rest(i) } \
    :: d_step { replica[i].stage == 2; finish(i) }
#else
#define PULL(i)
#endif

#define REPLICA(i) RECEIVE_ANY(i) DROP(i) DROP_OTHER(i) FAIL(i) PULL(i) PUSH(i)

active proctype Cell() {
#ifdef STOCKED              /* version 1 is everywhere */
    d_step {
        replica[0].stored = 1; replica[1].stored = 1; replica[2].stored = 1;
        mutation[1].kind = SET; mutation[1].acks = EVERY; done = 1; highest = 1
    }
#endif
end:
    do
    REPLICA(0)
    REPLICA(1)
    REPLICA(2)
    GET
#ifdef MEMORY
    :: d_step { BUSY(0); end_set() }
    :: d_step { !BUSY(0) && FREE(0); reuse(0) }
    :: d_step { !BUSY(0) && FREE(1); reuse(1) }
#endif
    od
}
