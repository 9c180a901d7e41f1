/* One key of a cell with three replicas and quorums of two (R=3.2): what a consistent GET may return.
 *
 * Invariants, checked in every state:
 *   a hit returns a version no lower than any that had completed, or that another GET had returned, when it began;
 *   a mutation completes only if its version is above all that had completed when it began;
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
#endif

#define SET 1
#define ERASE 2
#define CAS 4           /* expects version 1, which is a SET */

#define in(bits, i) (((bits) >> (i)) & 1)
#define top(a, b) (((a) > (b)) -> (a) : (b))
#define LEFT(i) (((i) + 1) % 3)
#define RIGHT(i) (((i) + 2) % 3)

byte kind[VERSIONS + 1];    /* 0: nobody knows yet, for nobody has applied it */
byte acks[VERSIONS + 1];    /* bits: replicas that told the client "applied"; or EVERY; with LATE or without */
#define EVERY 7             /* completed; or lower than another that did, so that it matters no more whether it completes */
#define LATE 8              /* it had not begun when a higher version completed */
byte done;                  /* the highest version that completed or was returned */
byte highest;               /* the highest version that any replica ever applied: what every clock is known to have passed */
byte crashes;

/* A replica. */
bool down[3];               /* its memory can still be read, until its successor revokes it */
byte stored[3];             /* version in the index; 0: not stored */
byte tomb[3];               /* version in the tombstone cache */
byte summary[3];            /* the highest version ever dropped without a trace */
byte start[3];              /* at or above all that was applied anywhere before this instance began: its clock says so */
byte fence[3];              /* the highest start among those who listed this replica */

/* Its repair. Stage 0: rests. 1: has a list. 2: has both, and has decided. */
byte stage[3];
byte asked[3];              /* 1: whose list it has */
byte version_seen[3];       /* 1: stored there.    2: version to install, or 0 */
byte tomb_seen[3];          /* 1: tombstone there. 2: version to erase at, or 0 */
byte summary_seen[3];       /* 1: summary there */

/* One GET at a time: it changes nothing, so others beside it would see no more. */
byte voter;                 /* whose index entry it has, plus 1; 0: it has none */
byte vote;                  /* the version in that entry */
bool outdated;              /* a hit would be wrong: a higher version was done when it began */

byte low;                   /* for loops within a step */
byte between;

#ifdef INSTANCES            /* a restarted replica refuses what was meant for its predecessor */
byte predecessors[VERSIONS + 1];    /* bits: replicas that failed since this mutation began */
#define MEANT(i, v) (!in(predecessors[v], i))
#else
#define MEANT(i, v) true
#endif

#ifdef REPAIR_BEFORE_NEXT_CRASH
bool mending[3];            /* restarted, and not repaired yet */
#define STEADY (!down[0] && !down[1] && !down[2] && !mending[0] && !mending[1] && !mending[2])
#else
#define STEADY true
#endif

#if KINDS & 4
byte visible;               /* bits: versions that completed or were returned */
#endif

#ifdef MEMORY               /* data slots: two at each replica, 2i and 2i + 1 */
#define OTHER (VERSIONS + 1)
byte header[6];             /* version in the slot's header; OTHER: of another key */
bool whole[6];              /* its sum is right */
bit place[3];               /* the slot that the index entry names */
bit spot[3];                /* the slot that is being written */
byte writing[3];            /* the version that is being written there, or 0 */
bit pointer;                /* the GET's: the slot that its index entry names */
bool fetched, agreed;       /* the GET has valid data; it has a second index entry with the same version */
#define BUSY(i) (writing[i] != 0)
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
byte copied;                /* the version whose value it copies; 0: not begun */
byte todo;                  /* bits: replicas that it still has to change */
byte patient;               /* the replica that it repairs */
byte worth[3];              /* of a replica that stores MADE_UP: the version that its value was set at */
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
            :: acks[low] == 0 -> acks[low] = LATE
#if !(KINDS & 4)
            :: acks[low] > 0 && acks[low] < EVERY -> acks[low] = EVERY
#endif
            :: else -> skip
            fi;
            low++
        :: else -> break
        od
    :: else -> skip
    fi;
#ifndef MEMORY
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
        :: in(visible, low) -> assert(!(kind[low] == CAS && between)); between = true
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
    :: (acks[v] & EVERY) == EVERY -> skip
    :: else ->
        acks[v] = acks[v] | (1 << (i));
        if
        :: (acks[v] & EVERY) == 3 || (acks[v] & EVERY) == 5 || (acks[v] & EVERY) == 6 ->
            printf("  version %d has completed\n", v);
            assert(!(acks[v] & LATE));
            acks[v] = EVERY;
            settle(v)
        :: else -> skip
        fi
    fi
}

#ifdef PUSH_REPAIR
#define VALUE_AT(i) ((stored[i] == MADE_UP) -> worth[i] : stored[i])
#else
#define VALUE_AT(i) stored[i]
#endif

inline hit(v) {
    printf("GET returns the value that was set at version %d; it must not be older than %d\n", v, done);
    assert(!outdated);
#ifndef PUSH_REPAIR
    settle(v);
#endif
    forget_get()
}

#ifdef RACE                 /* all three index entries, in any order: two of them agree */

#define EQUAL(i, j) (seen[i] != 0 && seen[i] == seen[j])

proctype Get() {
end:
    do
    :: d_step { !seen[0]; seen[0] = stored[0] + 1; printf("GET reads %d at 0\n", stored[0]) }
    :: d_step { !seen[1]; seen[1] = stored[1] + 1; printf("GET reads %d at 1\n", stored[1]) }
    :: d_step { !seen[2]; seen[2] = stored[2] + 1; printf("GET reads %d at 2\n", stored[2]) }
    :: d_step { seen[0] && seen[1] && seen[2]; assert(EQUAL(0, 1) || EQUAL(1, 2) || EQUAL(0, 2)); forget_get() }
    od
}

#else

/* It begins with its first index entry: had it begun earlier, less would have been done by then. */
inline ask(i) {
    voter = (i) + 1;
    vote = stored[i];
    printf("GET reads %d in the index of %d\n", vote, i);
#ifdef PUSH_REPAIR
    outdated = VALUE_AT(i) < done;
#else
    outdated = vote < done;
#endif
#ifdef MEMORY
    pointer = place[i];
#endif
#ifdef BROKEN_READ_ONE
    hit(vote);
#endif
}

#ifdef MEMORY
#define SLOT (2 * (voter - 1) + pointer)
#ifdef BROKEN_NO_SUM
#define SUM_PROVES true
#else
#define SUM_PROVES whole[SLOT]
#endif
#ifdef BROKEN_NO_VERSION_CHECK
#define VERSION_PROVES true
#else
#define VERSION_PROVES (header[SLOT] == vote)
#endif
#endif

#if defined(MEMORY) || defined(PUSH_REPAIR)
#define NEWS(i) (stored[i] != 0)
#else
#define NEWS(i) (stored[i] != 0 && stored[i] != done)  /* to return what is done changes nothing */
#endif
#define ASK(i) :: d_step { voter == 0 && NEWS(i); ask(i) }
#ifdef MEMORY
#define COMPARE(i) :: d_step { voter != 0 && voter != (i) + 1 && !agreed && stored[i] == vote; agreed = true }
#else
#define COMPARE(i) :: d_step { voter != 0 && voter != (i) + 1 && stored[i] == vote; \
        printf("GET reads %d in the index of %d\n", vote, i); hit(vote) }
#endif
#define COMPARE_RELIC(i) :: d_step { voter != 0 && voter != (i) + 1 && relic[i] == vote; \
        printf("GET reads %d in what the predecessor of %d left\n", vote, i); hit(vote) }

proctype Get() {
end:
    do
    ASK(0) ASK(1) ASK(2)
    COMPARE(0) COMPARE(1) COMPARE(2)
#ifdef BROKEN_NOT_REVOKED
    COMPARE_RELIC(0) COMPARE_RELIC(1) COMPARE_RELIC(2)
#endif
    :: d_step { voter != 0; forget_get() }      /* a miss, or no two agree, or it takes too long */
#ifdef MEMORY
    :: d_step { voter != 0 && !fetched && SUM_PROVES && VERSION_PROVES;
        assert(header[SLOT] == vote && whole[SLOT]);
        fetched = true }
    :: d_step { fetched && agreed; hit(vote) }
#endif
    od
}

#endif

/* ---- replicas ---- */

#ifdef BROKEN_LATE_SET
#define FLOOR(i) stored[i]
#else
#define FLOOR(i) ((stored[i] != 0) -> stored[i] : top(tomb[i], summary[i]))
#endif
#define GATE(i) top(start[i], fence[i])         /* for mutations of clients, not for repairs */

#define OPEN(i, v) (!down[i] && !BUSY(i) && (v) > GATE(i) && MEANT(i, v))
#define MAY_BE(v, what) ((KINDS & what) && (kind[v] == 0 || kind[v] == what))
#define TAKES(i, v, what) (OPEN(i, v) && MAY_BE(v, what) && (v) > FLOOR(i))
/* A repair was faster than the message. Calling this applied makes more mutations complete, so more must hold. */
#define THERE(i, v) (((kind[v] == ERASE) -> tomb[i] : stored[i]) == (v))

/* A summary at or below the version beside it says nothing: forgetting it makes fewer states. */
inline note(i, v) {
    summary[i] = ((summary[i] > (v)) -> summary[i] : 0);
#if CRASHES
    highest = ((crashes < CRASHES || down[0] || down[1] || down[2]) -> top(highest, v) : 0);
#elif defined(OTHER_KEYS)
    highest = top(highest, v);
#endif
}

inline store(i, v) { stored[i] = v; tomb[i] = 0; note(i, v) }

inline erase(i, v) { stored[i] = 0; tomb[i] = v; note(i, v) }

inline apply_erase(i, v) {
    printf("replica %d applies ERASE %d\n", i, v);
    kind[v] = ERASE; erase(i, v); acknowledge(i, v)
}

#ifdef MEMORY

/* Writing a data entry takes two steps. After the first its header is still the old one and its value is mixed. */
inline begin_set(i, v, where) { kind[v] = SET; writing[i] = v; spot[i] = where; whole[2 * i + where] = false }

inline end_set(i) {         /* the entry is whole, and then the index names it */
    printf("replica %d applies SET %d\n", i, writing[i]);
    header[2 * i + spot[i]] = writing[i]; whole[2 * i + spot[i]] = true;
    place[i] = spot[i]; spot[i] = 0;
    store(i, writing[i]); acknowledge(i, writing[i]);
    writing[i] = 0
}

#define FREE(i, where) (stored[i] == 0 || place[i] != where)
#define RECEIVE(i, v) \
    :: d_step { TAKES(i, v, SET) && FREE(i, 0); begin_set(i, v, 0) } \
    :: d_step { TAKES(i, v, SET) && FREE(i, 1); begin_set(i, v, 1) } \
    :: d_step { TAKES(i, v, ERASE); apply_erase(i, v) }

#else

inline apply_set(i, v) {
    printf("replica %d applies SET %d\n", i, v);
    kind[v] = SET; store(i, v); acknowledge(i, v)
}

inline apply_cas(i, v) {
    printf("replica %d applies CAS %d, which expects 1\n", i, v);
    kind[v] = CAS; store(i, v); acknowledge(i, v)
}

inline confirm(i, v) {
    printf("replica %d says that it has %d already\n", i, v);
    acknowledge(i, v)
}

#define RECEIVE(i, v) \
    :: d_step { TAKES(i, v, SET); apply_set(i, v) } \
    :: d_step { TAKES(i, v, ERASE); apply_erase(i, v) } \
    :: d_step { TAKES(i, v, CAS) && stored[i] == 1; apply_cas(i, v) } \
    :: d_step { OPEN(i, v) && THERE(i, v) && !in(acks[v], i); confirm(i, v) }

#endif

inline drop(i) {            /* eviction, or a tombstone leaves its cache */
    if
    :: stored[i] != 0 ->
        printf("replica %d evicts %d\n", i, stored[i]);
#ifndef BROKEN_EVICTION_LEAVES_NO_SUMMARY
        summary[i] = top(summary[i], stored[i]);
#endif
        stored[i] = 0
    :: else ->
        printf("replica %d drops tombstone %d\n", i, tomb[i]);
#ifndef BROKEN_TOMBSTONE_LEAVES_NO_SUMMARY
        summary[i] = top(summary[i], tomb[i]);
#endif
        tomb[i] = 0
    fi
}

inline rest(i) { stage[i] = 0; asked[i] = 0; version_seen[i] = 0; tomb_seen[i] = 0; summary_seen[i] = 0 }

inline crash(i) {
    printf("replica %d fails\n", i);
    crashes++;
    down[i] = true; tomb[i] = 0; summary[i] = 0; start[i] = 0; fence[i] = 0;
    rest(i);
#ifdef MEMORY
    writing[i] = 0;
#endif
#ifdef INSTANCES
    low = 1;
    do
    :: low <= VERSIONS ->
        if
        :: acks[low] & EVERY -> predecessors[low] = predecessors[low] | (1 << (i))
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
    relic[i] = stored[i];
#endif
    down[i] = false; stored[i] = 0;
#ifndef BROKEN_NO_START
    start[i] = highest;
#endif
    note(i, 0);
#ifdef REPAIR_BEFORE_NEXT_CRASH
    mending[i] = true;
#endif
}

/* ---- repair ---- */

#ifdef BROKEN_START_NOT_LISTED
#define LISTED_SUMMARY(j) summary[j]
#else
#define LISTED_SUMMARY(j) top(summary[j], start[j])
#endif
#ifdef BROKEN_REPAIR_IGNORES_SUMMARY
#define PERMITS(v, there, tombstone, dropped) ((there) != 0 || (v) > (tombstone))
#else
#define PERMITS(v, there, tombstone, dropped) ((there) != 0 || ((v) > (tombstone) && (v) > (dropped)))
#endif
#ifdef BROKEN_CAS_SPREADS
#define SURE(v, one, two) true
#else
#define SURE(v, one, two) (kind[v] != CAS || (one) == (two))
#endif

/* Before a replica is listed it is told the lister's start. From then on it lets in no mutation that the lister's predecessor may
   have acknowledged, and it forgets the lists that it had taken for itself, as they may have come from that predecessor. */
#ifdef BROKEN_NO_FENCE
#define FENCED(i, j) true
#else
#define FENCED(i, j) (start[i] <= GATE(j))
#endif

inline raise_fence(i, j) {
    printf("replica %d tells %d that it began at %d\n", i, j, start[i]);
    fence[j] = start[i];
#ifndef BROKEN_FENCE_KEEPS_LISTS
    rest(j)
#endif
}

inline finish(i) {          /* by ordinary versioned mutations, but START does not count */
    if
    :: version_seen[i] > FLOOR(i) ->
        printf("replica %d installs %d\n", i, version_seen[i]);
        store(i, version_seen[i])
    :: else ->
        if
        :: stored[i] != 0 && tomb_seen[i] > stored[i] ->
            printf("replica %d erases at %d\n", i, tomb_seen[i]);
            erase(i, tomb_seen[i])
        :: else -> skip
        fi
    fi;
#ifdef REPAIR_BEFORE_NEXT_CRASH
    mending[i] = false;
#endif
    rest(i)
}

#define CAN_ASK(i, j) (in(PULLERS, i) && !down[i] && !down[j])
#define REST(i) (3 - i - asked[i])

inline first_list(i, j) {
    printf("replica %d lists %d: stored %d, tombstone %d, summary %d\n", i, j, stored[j], tomb[j], LISTED_SUMMARY(j));
    stage[i] = 1; asked[i] = j;
    version_seen[i] = stored[j]; tomb_seen[i] = tomb[j];
    summary_seen[i] = ((stored[j] != 0) -> 0 : LISTED_SUMMARY(j));
#ifdef BROKEN_REPAIR_FROM_ONE
    stage[i] = 2; asked[i] = 0; summary_seen[i] = 0;
#endif
}

inline second_list(i, j) {
    printf("replica %d lists %d: stored %d, tombstone %d, summary %d\n", i, j, stored[j], tomb[j], LISTED_SUMMARY(j));
    low = top(version_seen[i], stored[j]);
    if
    :: low == 0 ->          /* neither stores it: the newest tombstone counts */
        tomb_seen[i] = top(tomb_seen[i], tomb[j])
    :: else ->
        if
        :: !PERMITS(low, version_seen[i], tomb_seen[i], summary_seen[i]) -> low = 0
        :: !PERMITS(low, stored[j], tomb[j], LISTED_SUMMARY(j)) -> low = 0
        :: !SURE(low, version_seen[i], stored[j]) -> low = 0
        :: else -> skip
        fi;
        tomb_seen[i] = 0
    fi;
    version_seen[i] = low; low = 0;
    stage[i] = 2; asked[i] = 0; summary_seen[i] = 0;
    if
    :: version_seen[i] <= FLOOR(i) && tomb_seen[i] <= FLOOR(i) -> finish(i)    /* floors only rise: it will change nothing */
    :: else -> skip
    fi
}

#ifdef PUSH_REPAIR
/* The paper's: the key is missing at, or differs from, one replica, and the other two agree. Set it there at a new version, and
   raise the version of the other two. The steps are messages like any others. PUSH_CAREFULLY raises only what was copied. */
#define DIRTY(i) (stored[LEFT(i)] != 0 && stored[LEFT(i)] == stored[RIGHT(i)] && stored[i] != stored[LEFT(i)])
#ifdef PUSH_CAREFULLY
#define RAISABLE(i) (stored[i] == copied)
#else
#define RAISABLE(i) (stored[i] != 0 && stored[i] < MADE_UP)
#endif
#define PUSH(i) \
    :: d_step { copied == 0 && DIRTY(i) && stored[LEFT(i)] != MADE_UP; \
        copied = stored[LEFT(i)]; todo = 7; patient = i; \
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
            printf("replica %d calls its value of version %d now %d\n", i, stored[i], MADE_UP); \
            worth[i] = stored[i]; store(i, MADE_UP) \
        :: else -> skip \
        fi }
#define CLIENT_VERSIONS (VERSIONS - 1)
#else
#define PUSH(i)
#define CLIENT_VERSIONS VERSIONS
#endif

proctype Replica(byte i) {
end:
    do
    RECEIVE(i, 1)
#if VERSIONS > 2 || (VERSIONS == 2 && !defined PUSH_REPAIR)
    RECEIVE(i, 2)
#endif
#if VERSIONS > 3 || (VERSIONS == 3 && !defined PUSH_REPAIR)
    RECEIVE(i, 3)
#endif
#if VERSIONS > 4 || (VERSIONS == 4 && !defined PUSH_REPAIR)
    RECEIVE(i, 4)
#endif
#if VERSIONS == 5
    RECEIVE(i, 5)
#endif
#ifdef MEMORY
    :: d_step { BUSY(i); end_set(i) }
    :: d_step { !BUSY(i) && FREE(i, 0); header[2 * i] = OTHER; whole[2 * i] = true }
    :: d_step { !BUSY(i) && FREE(i, 1); header[2 * i + 1] = OTHER; whole[2 * i + 1] = true }
#endif
#if DROPPERS
    :: d_step { in(DROPPERS, i) && !down[i] && !BUSY(i) && (stored[i] != 0 || tomb[i] != 0); drop(i) }
#endif
#ifdef OTHER_KEYS           /* a key that is not modelled is dropped */
    :: d_step { in(DROPPERS, i) && !down[i] && summary[i] < highest; summary[i]++ }
#endif
#if CRASHES
    :: d_step { crashes < CRASHES && in(FRAGILE, i) && !down[i] && STEADY; crash(i) }
    :: d_step { down[i]; restart(i) }
#endif
#if PULLERS
    :: d_step { CAN_ASK(i, LEFT(i)) && !FENCED(i, LEFT(i)); raise_fence(i, LEFT(i)) }
    :: d_step { CAN_ASK(i, RIGHT(i)) && !FENCED(i, RIGHT(i)); raise_fence(i, RIGHT(i)) }
    :: d_step { stage[i] == 0 && CAN_ASK(i, LEFT(i)) && FENCED(i, LEFT(i)); first_list(i, LEFT(i)) }
    :: d_step { stage[i] == 0 && CAN_ASK(i, RIGHT(i)) && FENCED(i, RIGHT(i)); first_list(i, RIGHT(i)) }
    :: d_step { stage[i] == 1 && CAN_ASK(i, REST(i)) && FENCED(i, REST(i)); second_list(i, REST(i)) }
    :: d_step { stage[i] == 1; rest(i) }
    :: d_step { stage[i] == 2; finish(i) }
#endif
    PUSH(i)
    od
}

init {
    atomic {
#ifdef STOCKED              /* version 1 is everywhere */
        stored[0] = 1; stored[1] = 1; stored[2] = 1;
        kind[1] = SET; acks[1] = EVERY; done = 1; highest = 1;
#endif
        run Replica(0); run Replica(1); run Replica(2);
        run Get()
    }
}
