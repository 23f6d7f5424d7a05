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
