/* Runs random columns through the loops that are compiled beside the scanner, for scripts/fuzz-native:
 * which range encloses which, and the replay. Each column stands in memory of its own and no longer than
 * it must be, so that a sanitizer sees a read or a write beyond it. Some of the numbers are such as no
 * trace has: threads, streams and tasks that are not there, times at the ends of 64 bits, NaN. */

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "../src/stepscope/analyses/host/nesting.c"
#undef EXPORT
#undef NONE
#include "../src/stepscope/replay/simulate.c"

static uint64_t state;
static uint64_t drawn(void) { /* xorshift64* */
    state ^= state >> 12, state ^= state << 25, state ^= state >> 27;
    return state * 2685821657736338717u;
}
static int64_t below(int64_t num) { return num > 0 ? (int64_t)(drawn() % (uint64_t)num) : 0; }
static int is_odd(int64_t of) { return below(of) == 0; }

static void *room(int64_t num, size_t size) {
    void *made = malloc(num ? (size_t)num * size : 1);
    if (!made) exit(2);
    return made;
}

static int64_t any_int(void) {
    static const int64_t ends[] = {INT64_MIN, INT64_MAX, -1, 0, 1, INT32_MAX};
    return ends[below(6)];
}
static double any_double(void) {
    static const double ends[] = {NAN, INFINITY, -INFINITY, -1e18, 1e300, 0.0};
    return ends[below(6)];
}

static int enclosed(int64_t strange) {
    int64_t num = below(200), num_threads = below(5), now = below(1000) - 500;
    int64_t *start = room(num, 8), *dur = room(num, 8), *parent = room(num, 8);
    int64_t *tops = room(num_threads, 8);
    uint8_t *kind = room(num, 1), *is_host = room(256, 1);
    int32_t *thread = room(num, 4);
    for (int i = 0; i < 256; i++) is_host[i] = i < 5;
    for (int64_t i = 0; i < num; i++) {
        start[i] = is_odd(strange) ? any_int() : (now += below(20));
        dur[i] = is_odd(strange) ? any_int() : below(100);
        kind[i] = (uint8_t)below(is_odd(strange) ? 256 : 7);
        thread[i] = (int32_t)(is_odd(strange) ? any_int() : below(num_threads));
    }
    int done = !stepscope_enclosing(num, start, dur, kind, thread, is_host, num_threads, tops, parent);
    for (int64_t i = 0; done && i < num; i++)
        if (parent[i] != NONE && (parent[i] < 0 || parent[i] >= i)) exit(3);
    free(start), free(dur), free(parent), free(tops), free(kind), free(is_host), free(thread);
    return done;
}

static int looked_up(int64_t strange) {
    int64_t num = below(200), num_events = below(50), outermost = below(2);
    int64_t *parent = room(num, 8), *events = room(num_events, 8), *result = room(num_events, 8);
    uint8_t *marked = room(num, 1);
    for (int64_t i = 0; i < num; i++) {
        parent[i] = is_odd(strange) ? any_int() : is_odd(5) ? NONE : i - 1 - below(i);
        marked[i] = is_odd(9);
    }
    for (int64_t i = 0; i < num_events; i++)
        events[i] = is_odd(strange) ? any_int() : num ? below(num + 1) - 1 : NONE;
    int done = !stepscope_ancestor_with(num, parent, marked, num_events, events, outermost, result);
    for (int64_t i = 0; done && i < num_events; i++)
        if (result[i] != NONE && !(result[i] <= events[i] && marked[result[i]])) exit(3);
    free(parent), free(events), free(result), free(marked);
    return done;
}

static int played(int64_t strange) {
    int64_t calls = below(100), streams = below(4), tasks = 0;
    int64_t *first = room(calls + 1, 8), *wait = room(calls, 8);
    double *call_ns = room(calls, 8), *tail = room(calls, 8);
    first[0] = 0;
    for (int64_t i = 0; i < calls; i++) {
        tasks += streams ? below(3) : 0;
        first[i + 1] = is_odd(strange) ? any_int() : tasks;
        wait[i] = is_odd(strange) ? any_int() : tasks && is_odd(4) ? below(tasks) : NONE;
        call_ns[i] = is_odd(strange) ? any_double() : (double)below(1000);
        tail[i] = is_odd(strange) ? any_double() : (double)below(100);
    }
    int64_t *stream = room(tasks, 8), *after = room(tasks, 8);
    double *columns[4], *ends = room(tasks, 8), *free_ns = room(streams, 8);
    for (int k = 0; k < 4; k++) columns[k] = room(tasks, 8);
    for (int64_t i = 0; i < streams; i++) free_ns[i] = -1e18;
    for (int64_t i = 0; i < tasks; i++) {
        stream[i] = is_odd(strange) ? any_int() : below(streams);
        after[i] = is_odd(strange) ? any_int() : i && is_odd(3) ? below(i) : NONE;
        for (int k = 0; k < 4; k++)
            columns[k][i] = is_odd(strange) ? any_double() : (double)below(500);
    }
    int done = !stepscope_play(calls, call_ns, wait, tail, first, tasks, stream, columns[0],
                               columns[1], columns[2], after, columns[3], streams, free_ns, ends);
    for (int64_t i = 0; done && i < tasks; i++) state ^= ends[i] > 0; /* All of them were written. */
    free(first), free(wait), free(call_ns), free(tail), free(stream), free(after), free(ends);
    free(free_ns);
    for (int k = 0; k < 4; k++) free(columns[k]);
    return done;
}

int main(int num, char **arguments) {
    if (num != 3) return 2;
    long seeds = atol(arguments[1]), first = atol(arguments[2]), num_done = 0;
    for (long seed = first; seed < first + seeds; seed++) {
        state = (uint64_t)seed * 2862933555777941757u + 3037000493u;
        int64_t strange = seed % 2 ? 1000000 : 200; /* One number in so many. */
        num_done += enclosed(strange) + looked_up(strange) + played(strange);
    }
    printf("%ld columns through nesting and replay, %ld taken\n", 3 * seeds, num_done);
    return 0;
}
