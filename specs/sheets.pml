/* One sheet: its producer fills it, tells of it, and begins it anew; consumers hold it and read it in place, copy it, and are killed.
 *
 * Invariant, checked at every read: what a consumer believes to have read are the messages that it had found, never others that were packed
 * over them meanwhile.
 *
 * A sheet is two words that must belong together; one sheet is enough, since each is taken by itself. Every step is one access to shared
 * memory, in the order of the program: that is what sequential consistency gives. A BROKEN_ switch takes one rule away.
 */

#ifndef CONSUMERS
#define CONSUMERS 2
#endif
#ifndef ROUNDS
#define ROUNDS 3        /* how often it is begun anew */
#endif
#ifndef READS
#define READS 2         /* of each consumer */
#endif

#ifdef REACH
#define HAPPENS(n, when) assert(REACH != n || !(when))
#else
#define HAPPENS(n, when) skip
#endif

byte generation;        /* 0: nothing that may be read */
byte told;              /* of which generation messages may be read */
byte word[2];           /* the messages: the generation that they belong to */
bool pinned[CONSUMERS];
bool alive[CONSUMERS];  /* the lock on its place */

active proctype producer() {
    byte round = 0, before, i;
    bool held;
    do
    :: round < ROUNDS ->
        round++;
        before = generation;
#ifndef BROKEN_PINS_FIRST
        generation = 0;
#endif
        held = false;
        i = 0;
        do
        :: i < CONSUMERS ->
            if
            :: pinned[i] ->
                if
                :: alive[i] -> held = true
                :: else -> pinned[i] = false
                fi
            :: else
            fi;
            i++
        :: else -> break
        od;
        if
        :: held ->
            HAPPENS(1, true);
            generation = before
        :: else ->
            printf("the producer begins it anew: %d\n", round);
            told = 0;
            generation = round;
            word[0] = round;
            word[1] = round;
            told = round
        fi
    :: else -> break
    od
}

proctype consumer(byte me) {
    byte reads = 0, found, first, second;
    do
    :: reads < READS ->
        reads++;
        found = generation;
        if
        :: found == 0 || told != found -> skip
        :: else ->
            if
            :: true ->          /* hold it */
                pinned[me] = true;
#ifndef BROKEN_NO_SECOND_LOOK
                if
                :: generation != found -> pinned[me] = false; goto next
                :: else
                fi;
#endif
                first = word[0];
                second = word[1];
                printf("consumer %d holds %d and reads %d, %d\n", me, found, first, second);
                assert(first == found && second == found);
                HAPPENS(2, generation != found);
                second = word[1];
                assert(second == found);
                if
                :: pinned[me] = false
                :: alive[me] = false; /* it is killed; another one takes its place */
                   HAPPENS(3, true);
                   alive[me] = true;
                   pinned[me] = false
                fi
            :: true ->          /* copy it */
                first = word[0];
                second = word[1];
#ifndef BROKEN_COPIES_BLINDLY
                if
                :: generation != found -> goto next
                :: else
                fi;
#endif
                printf("consumer %d copied %d: %d, %d\n", me, found, first, second);
                assert(first == found && second == found)
            fi
        fi;
next:   skip
    :: else -> break
    od
}

init {
    byte i = 0;
    atomic {
        do
        :: i < CONSUMERS -> alive[i] = true; run consumer(i); i++
        :: else -> break
        od
    }
}
