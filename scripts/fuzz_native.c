/* Runs chunks from a file through the scanner, for scripts/fuzz-native: each a size of 8 bytes and
 * so many bytes. Each stands in memory of its own, so that a sanitizer sees a read beyond it. A handle
 * is kept for a few chunks, as for a file. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* Some memory is not given, in the second run. */
static uint32_t refusals, state = 1;
static int is_refused(void) {
    state = state * 1664525u + 1013904223u;
    return refusals && state >> 24 < refusals;
}
static void *given(size_t num, size_t size) { return is_refused() ? NULL : calloc(num, size); }
static void *regiven(void *old, size_t size) { return is_refused() ? NULL : realloc(old, size); }
#define calloc given
#define realloc regiven
#include "../src/stepscope/readers/kineto/scan.c"
#undef calloc
#undef realloc

#define CHUNKS_PER_HANDLE 7

static uint64_t touched(void *handle) {
    uint64_t sum = 0;
    for (int i = 0; i < NUM_TABLES; i++) {
        TableView view;
        stepscope_scan_table(handle, i, &view);
        for (int64_t k = 0; k < view.num; k++) sum += view.ends[k];
        if (view.num)
            for (uint64_t k = 0; k < view.ends[view.num - 1]; k++) sum += view.bytes[k];
    }
    const Result *result = stepscope_scan_result(handle);
    for (int64_t i = 0; i < result->num_rows; i++) {
#define X(name, type) sum += (uint64_t)result->name[i];
        COLUMNS(X)
#undef X
    }
    for (int64_t i = 0; i < result->num_memory * MEMORY_WIDTH; i++)
        sum += (uint64_t)result->memory[i];
    for (int64_t i = 0; i < result->num_labels * LABEL_WIDTH; i++)
        sum += (uint64_t)result->labels[i];
    return sum;
}

int main(int num, char **arguments) {
    FILE *file = num == 3 ? fopen(arguments[1], "rb") : NULL;
    refusals = num == 3 ? (uint32_t)atoi(arguments[2]) : 0; /* of 256 */
    if (!file) return 2;
    uint8_t phases[NUM_PHASES] = {['X'] = COMPLETE, ['M'] = META, ['i'] = INSTANT,
                                  ['s'] = SKIPPED,  ['f'] = SKIPPED, ['C'] = SKIPPED};
    static const char categories[] = "cpu_op\0user_annotation\0cuda_runtime\0kernel\0cuda_sync";
    static const uint8_t kinds[] = {OP, MARK, RUNTIME, KERNEL, SYNC};
    void *handle = NULL;
    long num_chunks = 0, num_clean = 0;
    uint64_t size, sum = 0;
    for (; fread(&size, sizeof size, 1, file) == 1; num_chunks++) {
        uint8_t *text = malloc(size ? size : 1);
        if (!text || fread(text, 1, size, file) != size) return 2;
        if (num_chunks % CHUNKS_PER_HANDLE == 0) {
            stepscope_scan_free(handle);
            do {
                handle = stepscope_scan_new((uint64_t)num_chunks, phases, categories, kinds, 5);
            } while (!handle);
        }
        for (int as_text = 0; as_text < 2; as_text++) {
            int clean = stepscope_scan(handle, text, (int64_t)size, as_text) == OK;
            if (clean) sum += touched(handle);
            num_clean += clean;
        }
        free(text);
    }
    stepscope_scan_free(handle);
    fclose(file);
    printf("%ld chunks, %ld of %ld scans clean (%llx)\n", num_chunks, num_clean, 2 * num_chunks,
           (unsigned long long)sum);
    return 0;
}
