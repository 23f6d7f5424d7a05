/* Plays a graph, call by call: the same sums in the same order as simulate.py's `ends_by_call`. */

#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))
#define NONE (-1)

/* `free_ns`: per stream, when it came free; changed on the way. Not 0: the graph points outside of
 * itself, or to what comes later. */
EXPORT int stepscope_play(int64_t num_calls, const double *call_ns, const int64_t *call_wait,
                          const double *call_tail_ns, const int64_t *call_first, int64_t num_tasks,
                          const int64_t *stream, const double *task_ns, const double *latency_ns,
                          const double *gap_ns, const int64_t *after, const double *lag_ns,
                          int64_t num_streams, double *free_ns, double *ends) {
    double now = 0.0;
    int64_t task = 0;
    for (int64_t call = 0; call < num_calls; call++) {
        int64_t last = call_first[call + 1], awaited = call_wait[call];
        if (last > num_tasks) return 1;
        for (; task < last; task++) {
            if (stream[task] < 0 || stream[task] >= num_streams) return 1;
            double begin = now + latency_ns[task];
            double other = free_ns[stream[task]] + gap_ns[task];
            if (other > begin) begin = other;
            if (after[task] != NONE) {
                if (after[task] < 0 || after[task] >= task) return 1;
                other = ends[after[task]] + lag_ns[task];
                if (other > begin) begin = other;
            }
            begin += task_ns[task];
            free_ns[stream[task]] = ends[task] = begin;
        }
        if (awaited != NONE) {
            if (awaited < 0 || awaited >= task) return 1;
            if (ends[awaited] > now) now = ends[awaited];
            now += call_tail_ns[call];
        }
        now += call_ns[call];
    }
    return task != num_tasks;
}

/* Several ranks at once: as simulate_job.py's `_simulate` and the turns around it. */

enum { CALL, TASK };

typedef struct {
    int64_t num_calls, num_tasks, num_streams;
    const double *call_ns, *call_tail_ns, *task_ns, *latency_ns, *gap_ns, *lag_ns;
    const int64_t *call_wait, *call_first, *stream, *after, *shared;
    double *free_ns, *begins, *ends;
} Rank;

/* The number of the collective that the rank comes to, with when; NONE at its end, -2 where the
 * graph points outside of itself. `at`: where it is, between calls. */
static int64_t advance(const Rank *rank, int64_t *at, double *now, int64_t num_shared) {
    for (; at[CALL] < rank->num_calls; at[CALL]++) {
        int64_t call = at[CALL], last = rank->call_first[call + 1];
        if (last > rank->num_tasks) return -2;
        for (; at[TASK] < last; at[TASK]++) {
            int64_t task = at[TASK], stream = rank->stream[task];
            if (stream < 0 || stream >= rank->num_streams) return -2;
            double begin = *now + rank->latency_ns[task];
            double other = rank->free_ns[stream] + rank->gap_ns[task];
            if (other > begin) begin = other;
            if (rank->after[task] != NONE) {
                if (rank->after[task] < 0 || rank->after[task] >= task) return -2;
                other = rank->ends[rank->after[task]] + rank->lag_ns[task];
                if (other > begin) begin = other;
            }
            if (rank->shared[task] != NONE && rank->task_ns[task] > 0) {
                if (rank->shared[task] < 0 || rank->shared[task] >= num_shared) return -2;
                rank->begins[task] = begin;
                return rank->shared[task];
            }
            rank->free_ns[stream] = rank->ends[task] = begin + rank->task_ns[task];
        }
        int64_t awaited = rank->call_wait[call];
        if (awaited != NONE) {
            if (awaited < 0 || awaited >= at[TASK]) return -2;
            if (rank->ends[awaited] > *now) *now = rank->ends[awaited];
            *now += rank->call_tail_ns[call];
        }
        *now += rank->call_ns[call];
    }
    return at[TASK] == rank->num_tasks ? NONE : -2;
}

/* The last of those that came, and how many did. */
static double last_of(const double *arrival, int64_t num_ranks, int64_t *num) {
    double last = 0.0;
    *num = 0;
    for (int64_t rank = 0; rank < num_ranks; rank++) {
        if (arrival[rank] != arrival[rank]) continue;
        if (*num == 0 || arrival[rank] > last) last = arrival[rank];
        ++*num;
    }
    return last;
}

/* Columns of all ranks one after the other: `call_at`, `task_at` and `stream_at` say where each
 * rank's begin, indices in them count from there (call_first has one entry more a rank). `arrival`,
 * all NaN before: per collective, when each rank came to it. `at` and `now`: room for a rank's
 * place, all 0. `num_forced`: collectives that could not wait for all. */
EXPORT int stepscope_play_job(
    int64_t num_ranks, const int64_t *call_at, const int64_t *task_at, const int64_t *stream_at,
    const double *call_ns, const int64_t *call_wait, const double *call_tail_ns,
    const int64_t *call_first, const int64_t *stream, const double *task_ns,
    const double *latency_ns, const double *gap_ns, const int64_t *after, const double *lag_ns,
    const int64_t *shared, int64_t num_shared, const double *moving_ns, const int64_t *members,
    double *free_ns, double *arrival, double *begins, double *ends, int64_t *at, double *now,
    int64_t *pending, int64_t *num_forced) {
    int64_t num_pending = 0, num;
    *num_forced = 0;
    /* Of a rank that is released: which it waits for; else NONE. A second column beside it. */
    int64_t *released = pending + num_ranks;
    for (int64_t rank = 0; rank < num_ranks; rank++) released[rank] = -3;
    for (;;) {
        num_pending = 0;
        for (int64_t r = 0; r < num_ranks; r++) {
            if (released[r] == NONE) {
                num_pending += pending[r] != NONE;
                continue;
            }
            int64_t calls = call_at[r], tasks = task_at[r], streams = stream_at[r];
            Rank rank = {
                call_at[r + 1] - calls, task_at[r + 1] - tasks, stream_at[r + 1] - streams,
                call_ns + calls, call_tail_ns + calls, task_ns + tasks, latency_ns + tasks,
                gap_ns + tasks, lag_ns + tasks,
                call_wait + calls, call_first + calls + r, stream + tasks, after + tasks,
                shared + tasks,
                free_ns + streams, begins + tasks, ends + tasks,
            };
            int64_t *place = at + 2 * r;
            if (released[r] >= 0) {
                int64_t task = place[TASK]++;
                double end = last_of(arrival + released[r] * num_ranks, num_ranks, &num);
                end += moving_ns[released[r]];
                rank.free_ns[rank.stream[task]] = rank.ends[task] = end;
            }
            pending[r] = advance(&rank, place, now + r, num_shared);
            if (pending[r] == -2) return 1;
            if (pending[r] != NONE) {
                arrival[pending[r] * num_ranks + r] = rank.begins[place[TASK]];
                num_pending++;
            }
        }
        if (num_pending == 0) return 0;
        int is_any = 0;
        int64_t earliest = NONE;
        double least = 0.0;
        for (int64_t r = 0; r < num_ranks; r++) {
            released[r] = NONE;
            if (pending[r] == NONE) continue;
            double last = last_of(arrival + pending[r] * num_ranks, num_ranks, &num);
            if (num >= members[pending[r]]) {
                released[r] = pending[r];
                is_any = 1;
            }
            if (earliest == NONE || last < least) earliest = pending[r], least = last;
        }
        if (is_any) continue;
        ++*num_forced;
        for (int64_t r = 0; r < num_ranks; r++)
            if (pending[r] == earliest) released[r] = earliest;
    }
}
