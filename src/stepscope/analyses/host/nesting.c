/* Which host range encloses which, in one pass over events in order of time, and what stands around
 * them: the same as nesting.py's `by_levels` and `ancestor_by_levels`. */

#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))
#define NONE (-1)

static inline int is_open(int64_t range, int64_t now, const int64_t *start, const int64_t *dur) {
    /* Unsigned: the events are in order, and times may be as far apart as 64 bits allow. */
    uint64_t since = (uint64_t)now - (uint64_t)start[range];
    /* An empty range lasts 1 ns, so that it has an inside. */
    return since < (uint64_t)(dur[range] > 1 ? dur[range] : 1);
}

/* `is_host`: per kind, for all 256. `tops`: per thread, room for the range begun last. `parent` is
 * also the stack of each thread: what was open when a range began stands beneath it. Not 0: a
 * thread is out of range. */
EXPORT int stepscope_enclosing(int64_t num, const int64_t *start, const int64_t *dur,
                               const uint8_t *kind, const int32_t *thread, const uint8_t *is_host,
                               int64_t num_threads, int64_t *tops, int64_t *parent) {
    for (int64_t i = 0; i < num_threads; i++) tops[i] = NONE;
    for (int64_t i = 0; i < num; i++) {
        parent[i] = NONE;
        if (!is_host[kind[i]]) continue;
        if (thread[i] < 0 || thread[i] >= num_threads) return 1;
        int64_t top = tops[thread[i]];
        while (top != NONE && !is_open(top, start[i], start, dur)) top = parent[top];
        parent[i] = top;
        tops[thread[i]] = i;
    }
    return 0;
}

/* Of each of `events` the innermost, or outermost, of itself and what is around it that is marked.
 * Not 0: a number is out of range, or a range does not begin before what it is around. */
EXPORT int stepscope_ancestor_with(int64_t num, const int64_t *parent, const uint8_t *marked,
                                   int64_t num_events, const int64_t *events, int64_t outermost,
                                   int64_t *result) {
    for (int64_t i = 0; i < num_events; i++) {
        int64_t best = NONE, event = events[i];
        if (event < NONE || event >= num) return 1;
        while (event != NONE) {
            if (marked[event]) {
                best = event;
                if (!outermost) break;
            }
            int64_t above = parent[event];
            if (above < NONE || above >= event) return 1;
            event = above;
        }
        result[i] = best;
    }
    return 0;
}
