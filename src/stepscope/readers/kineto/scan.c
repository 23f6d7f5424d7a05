/* The compiled scanner: the text of whole trace events in, columns out.
 *
 * It does what Scanner.scan of event_decoder.py does, for text that is clean JSON of the expected
 * types, and refuses all else (NOT_CLEAN): a refused chunk is scanned by the Python code instead.
 * So whatever is accepted here must give exactly what Python gives; when in doubt, refuse.
 *
 * No part of Python's API is used: native.py calls it through ctypes. A handle holds one file's
 * tables; keys are the raw bytes of the text, numbered in the order they are first met. The keys of
 * a refused chunk are taken out again.
 */

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#elif defined(__aarch64__) && defined(__ARM_NEON)
#include <arm_neon.h>
#define USE_NEON 1
#endif

#define EXPORT __attribute__((visibility("default")))
#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)

#define ABI_VERSION 5

enum { OK, NOT_CLEAN, NO_MEMORY };

#define NONE (-1)
#define MAX_DEPTH 60
#define EXACT_DOUBLE_US (UINT64_C(1) << 43)
/* The most microseconds whose nanoseconds are below 2^62, less one: room for rounding up. */
#define MAX_US UINT64_C(4611686018427386)

typedef const uint8_t *Text;

/* ---------------------------------------------------------------- what Python gets */

#define COLUMNS(X)                                                                            \
    X(start_ns, int64_t) X(dur_ns, int64_t) X(kind, uint8_t) X(name, int32_t)                 \
    X(thread, int32_t) X(device, int16_t) X(stream, int64_t) X(correlation, int64_t)          \
    X(external, int64_t) X(sequence, int64_t) X(fwd_thread, int64_t) X(size_bytes, int64_t)   \
    X(detail, int32_t) X(collective, int32_t) X(category, int32_t)

/* Codes of `detail` and `collective`: the number in a table, times the number of tables that the
 * column points into, and which of them it is. */

enum {
    NAMES, CATEGORIES, THREADS, OP_DETAILS, LAUNCH_DETAILS,
    HOST_COLLECTIVES, DEVICE_COLLECTIVES, NUM_TABLES
};

#define MEMORY_WIDTH 7 /* time, bytes, address, allocated, reserved, device type, device */
#define LABEL_WIDTH 6  /* offset and length of pid, tid and name in the text */
#define NUM_PHASES 128

typedef struct {
    int64_t num_rows, num_raw, num_no_time, num_no_duration, num_negative;
    int64_t num_memory_seen, num_memory, num_labels;
    /* Times that doubles are not exact for, and any that is not written as a whole number. Both in
     * one chunk: it must be scanned again, `as_text`. */
    int64_t beyond_doubles, not_whole;
    int64_t phases[NUM_PHASES];
#define X(name, type) type *name;
    COLUMNS(X)
#undef X
    int64_t *memory;
    int64_t *labels;
} Result;

typedef struct {
    const uint8_t *bytes;
    const uint64_t *ends;
    int64_t num;
} TableView;

/* core.trace.Kind */
enum { OP, MARK, PYTHON, RUNTIME, KERNEL, MEMCPY, MEMSET, SYNC, OTHER = 11 };

/* What a phase is to the scanner; the table of them comes from Python. */
enum { REFUSED, COMPLETE, META, INSTANT, SKIPPED };

/* ---------------------------------------------------------------- tables */

typedef struct {
    uint8_t *bytes;
    size_t num_bytes, max_bytes;
    uint64_t *ends, *hashes;
    uint32_t num, max;
    uint64_t *slots; /* high half: of the hash; low half: number + 1, 0 where free */
    uint32_t mask;
} Table;

static int grow(void **data, size_t *max, size_t wanted, size_t width) {
    size_t more = *max ? *max : 64;
    while (more < wanted) {
        if (more > SIZE_MAX / 2) return 0;
        more *= 2;
    }
    if (more > SIZE_MAX / width) return 0;
    if (more == *max) return 1;
    void *grown = realloc(*data, more * width);
    if (!grown) return 0;
    *data = grown;
    *max = more;
    return 1;
}

static inline uint64_t mixed(uint64_t a, uint64_t b) {
    __extension__ typedef unsigned __int128 Wide;
    Wide product = (Wide)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static inline uint64_t load8(Text at) {
    uint64_t word;
    memcpy(&word, at, 8);
    return word;
}

static inline uint64_t hash(Text key, size_t size, uint64_t seed) {
    const uint64_t a = UINT64_C(0x9e3779b97f4a7c15), b = UINT64_C(0xd6e8feb86659fd93);
    uint64_t state = seed ^ a;
    Text at = key;
    size_t left = size;
    for (; left >= 16; left -= 16, at += 16)
        state = mixed(load8(at) ^ state, load8(at + 8) ^ seed ^ b);
    uint64_t low = 0, high = 0;
    if (left >= 8) {
        low = load8(at);
        high = load8(at + left - 8);
    } else if (left) {
        for (size_t i = 0; i < left; i++) low |= (uint64_t)at[i] << (8 * i);
    }
    state = mixed(low ^ state, high ^ seed ^ b);
    return mixed(state ^ size, seed ^ a);
}

static void place(Table *table, uint32_t number) {
    uint64_t code = table->hashes[number];
    uint32_t slot = (uint32_t)code & table->mask;
    while (table->slots[slot]) slot = (slot + 1) & table->mask;
    table->slots[slot] = (code & ~UINT64_C(0xffffffff)) | (number + 1);
}

static int widen(Table *table) {
    size_t max = table->max;
    if (table->num >= (UINT32_C(1) << 29)) return 0; /* codes are three times as many */
    size_t hashes = max;
    if (!grow((void **)&table->ends, &max, (size_t)table->num + 1, sizeof(uint64_t))) return 0;
    if (!grow((void **)&table->hashes, &hashes, (size_t)table->num + 1, sizeof(uint64_t)))
        return 0;
    /* At most half of the slots are taken. */
    uint64_t *slots = calloc(2 * max, sizeof(uint64_t));
    if (!slots) return 0;
    free(table->slots);
    table->max = (uint32_t)max;
    table->slots = slots;
    table->mask = (uint32_t)(2 * max - 1);
    for (uint32_t i = 0; i < table->num; i++) place(table, i);
    return 1;
}

static inline Text key_of(const Table *table, uint32_t number, size_t *size) {
    uint64_t begin = number ? table->ends[number - 1] : 0;
    *size = (size_t)(table->ends[number] - begin);
    return table->bytes + begin;
}

/* The number of a key that the table has, or NONE. */
static inline int32_t found(const Table *table, Text key, size_t size, uint64_t code) {
    if (!table->slots) return NONE;
    uint64_t high = code & ~UINT64_C(0xffffffff);
    for (uint32_t slot = (uint32_t)code & table->mask;; slot = (slot + 1) & table->mask) {
        uint64_t entry = table->slots[slot];
        if (!entry) return NONE;
        if ((entry & ~UINT64_C(0xffffffff)) != high) continue;
        size_t there;
        uint32_t number = (uint32_t)entry - 1;
        Text known = key_of(table, number, &there);
        if (there == size && (!size || !memcmp(known, key, size))) return (int32_t)number;
    }
}

static int32_t added(Table *table, Text key, size_t size, uint64_t code) {
    if (table->num == table->max && !widen(table)) return NONE;
    if (table->max_bytes - table->num_bytes < size &&
        !grow((void **)&table->bytes, &table->max_bytes, table->num_bytes + size, 1))
        return NONE;
    if (size) memcpy(table->bytes + table->num_bytes, key, size);
    table->num_bytes += size;
    table->ends[table->num] = table->num_bytes;
    table->hashes[table->num] = code;
    place(table, table->num);
    return (int32_t)table->num++;
}

/* The number of a key, new or not; NONE when there is no memory. */
static inline int32_t number_of(Table *table, Text key, size_t size, uint64_t seed) {
    uint64_t code = hash(key, size, seed);
    int32_t number = found(table, key, size, code);
    return LIKELY(number >= 0) ? number : added(table, key, size, code);
}

/* Takes out the keys from number `num` on. Keys stand in their slots in the order they came, also
 * after growth, so no older key was ever placed beyond the slot of a younger one. */
static void take_back(Table *table, uint32_t num) {
    while (table->num > num) {
        uint32_t last = table->num - 1;
        uint32_t slot = (uint32_t)table->hashes[last] & table->mask;
        while ((uint32_t)table->slots[slot] != last + 1) slot = (slot + 1) & table->mask;
        table->slots[slot] = 0;
        table->num = last;
        table->num_bytes = last ? (size_t)table->ends[last - 1] : 0;
    }
}

static void empty(Table *table) {
    free(table->bytes);
    free(table->ends);
    free(table->hashes);
    free(table->slots);
}

/* ---------------------------------------------------------------- names of fields */

typedef struct {
    const char *const *names;
    uint8_t num;
    uint8_t sizes[64];
    uint8_t slots[256]; /* number + 1 */
} Fields;

static inline uint8_t slot_of(Text key, size_t size) {
    return (uint8_t)(size * 37 + key[0] * 5 + key[size - 1] * 11 + key[size / 2] * 3);
}

static void name_fields(Fields *fields, const char *const *names, size_t num) {
    memset(fields, 0, sizeof *fields);
    fields->names = names;
    fields->num = (uint8_t)num;
    for (size_t i = 0; i < num; i++) {
        fields->sizes[i] = (uint8_t)strlen(names[i]);
        uint8_t slot = slot_of((Text)names[i], fields->sizes[i]);
        while (fields->slots[slot]) slot++;
        fields->slots[slot] = (uint8_t)(i + 1);
    }
}

static inline int field_of(const Fields *fields, Text key, size_t size) {
    if (!size) return NONE;
    for (uint8_t slot = slot_of(key, size), number; (number = fields->slots[slot]); slot++)
        if (fields->sizes[number - 1] == size && !memcmp(fields->names[number - 1], key, size))
            return number - 1;
    return NONE;
}

/* Events of a file are written alike: after one key mostly comes the one that came before. A key
 * that is as guessed, from the end of the value before it to its own value, need not be taken
 * apart; nor the end of an object. */
#define MAX_GUESSED 56
#define NUM_GUESSES 128
#define NUM_NEXT 4
#define ENDS (-2) /* in the place of a field: the object's closing brace */
typedef struct {
    /* What `field` is one of: no guess leads from the fields of an event to those of arguments. */
    const Fields *fields;
    uint8_t text[MAX_GUESSED + 8];
    uint8_t size;
    int8_t field;
    uint8_t is_time;
    uint8_t next[NUM_NEXT]; /* what came after it; NO_GUESS, and nothing after it, matches nothing */
} Guess;

/* Where an event begins, and where the arguments of one category do. */
enum { NO_GUESS, AT_EVENT, AT_ARGS, NUM_ARGS_STARTS = 16, NUM_STARTS = AT_ARGS + NUM_ARGS_STARTS };

enum { F_PH, F_CAT, F_PID, F_TID, NUM_FEW, F_NAME = NUM_FEW, F_TS, F_DUR, F_ARGS, NUM_EVENT_FIELDS };
static const char *const EVENT_FIELDS[NUM_EVENT_FIELDS] = {"ph",   "cat", "pid", "tid",
                                                           "name", "ts",  "dur", "args"};

/* Those of records.Args: first the numbers, then what is kept as text. */
enum {
    A_EXTERNAL, A_SEQUENCE, A_FWD_THREAD, A_CORRELATION, A_DEVICE, A_STREAM, A_BYTES, A_SIZE,
    NUM_NUMBERS,
    A_TYPES = NUM_NUMBERS, A_DIMS, A_STRIDES, A_CONCRETE,
    A_GRID, A_BLOCK, A_REGISTERS, A_SHARED, A_OCCUPANCY,
    A_COLLECTIVE, NUM_ARGS = A_COLLECTIVE + 14
};
#define NUM_TEXTS (NUM_ARGS - NUM_NUMBERS)
static const char *const ARGS_FIELDS[NUM_ARGS] = {
    "External id", "Sequence number", "Fwd thread id", "correlation", "device", "stream", "bytes",
    "size",
    "Input type", "Input Dims", "Input Strides", "Concrete Inputs",
    "grid", "block", "registers per thread", "shared memory", "est. achieved occupancy %",
    "Collective name", "Process Group Name", "Process Group Description", "Process Group Ranks",
    "Group size", "dtype", "In msg nelems", "Out msg nelems", "In split size", "Out split size",
    "Seq", "Process Group ID", "Src Rank", "Dst Rank"};

#define NUM_INSTANT_FIELDS (MEMORY_WIDTH - 1)
static const char *const INSTANT_FIELDS[NUM_INSTANT_FIELDS] = {
    "Bytes", "Addr", "Total Allocated", "Total Reserved", "Device Type", "Device Id"};

/* ---------------------------------------------------------------- values */

enum { MISSING, STRING, WHOLE, DECIMAL, NULL_VALUE, OBJECT, ANY_OTHER };

typedef struct {
    Text at;
    size_t size; /* of a string without its quotes; of anything else, all of it */
    int type;
    int escaped;
    uint32_t id; /* of the KnownValue that it is; 0 where it is none */
} Value;

typedef struct {
    uint64_t digits; /* all of them, without the point */
    uint64_t whole;  /* those before it */
    unsigned num_digits, num_decimals;
    int negative, exponent;
    int wide; /* more than 64 bits hold */
} Number;

/* The first fields of an event have few values: a string without escapes, or a whole number. One
 * that is as remembered, with the comma after a number, need not be taken apart. */
#define MAX_KNOWN 24
#define NUM_KNOWN 32
typedef struct {
    uint8_t text[MAX_KNOWN + 8];
    uint8_t compared, size; /* how much of the text is compared, and how much of it is the value */
    int type;
    uint32_t id; /* another for each text that ever stood here */
} KnownValue;

typedef struct {
    int64_t numbers[NUM_NUMBERS];
    Value texts[NUM_TEXTS];
    uint64_t has; /* a bit for each text that is there */
} Args;

/* Operators and frames come in the same order again and again. A name or details that follow on the
 * last ones as they did before need neither be taken apart nor looked up: a text that was clean
 * once, and ends by itself, is so again. */
#define NUM_NAME_GUESSES 4096
#define NUM_DETAIL_GUESSES 8192
#define MAX_PARTS 5
typedef struct {
    int32_t code; /* NONE: no guess */
    int first, num; /* of the texts of Args that it has */
    unsigned has, same; /* a bit for each: it is there; and it was met again */
    Text parts[MAX_PARTS];
    size_t sizes[MAX_PARTS];
} GuessedDetails;

typedef struct {
    uint64_t seed;
    int32_t name_guesses[NUM_NAME_GUESSES], detail_guesses[NUM_DETAIL_GUESSES]; /* and one */
    int32_t last_names[3], last_detail;
    GuessedDetails guessed;
    Fields event_fields, args_fields, instant_fields;
    Guess guesses[NUM_GUESSES];
    uint8_t guess_slots[256];
    unsigned num_guesses;
    KnownValue values[NUM_FEW][NUM_KNOWN];
    uint32_t num_ids;
    uint8_t phases[NUM_PHASES];
    Table known; /* lower-case categories */
    uint8_t *known_kinds;
    uint8_t *kinds; /* of the categories met */
    size_t max_kinds;
    Table tables[NUM_TABLES];
    Result result;
    size_t max_rows, max_memory, max_labels, max_scratch;
    uint8_t *scratch;
    /* Of the chunk at hand. */
    Text begin, end;
    int as_text;
    int no_memory;
    uint32_t before[NUM_TABLES];
    Value last_category, last_pid, last_tid;
    int32_t last_category_number, last_thread_number;
    Args args;
} Scan;

static inline Text skip_blanks(Text at, Text end) {
    if (LIKELY(at < end && *at > ' ')) return at;
    if (LIKELY(end - at > 1 && *at == ' ' && at[1] > ' ')) return at + 1;
    while (at < end && (*at == ' ' || *at == '\n' || *at == '\r' || *at == '\t')) {
        at++;
        /* Lines are indented by four or six. */
        if (end - at >= 4 && !memcmp(at, "    ", 4)) at += 4;
    }
    return at;
}

/* Where plain text of a string ends: at a quote, a backslash or a control character, or at `end`.
 * `high` becomes true where bytes beyond ASCII may have been passed. */
static inline Text plain_end(Text at, Text end, int *high) {
#if defined(__SSE2__)
    const __m128i quote = _mm_set1_epi8('"'), slash = _mm_set1_epi8('\\');
    const __m128i control = _mm_set1_epi8(0x1f);
    while (end - at >= 16) {
        __m128i text = _mm_loadu_si128((const __m128i *)(const void *)at);
        __m128i stop = _mm_or_si128(_mm_cmpeq_epi8(text, quote), _mm_cmpeq_epi8(text, slash));
        stop = _mm_or_si128(stop, _mm_cmpeq_epi8(_mm_min_epu8(text, control), text));
        unsigned mask = (unsigned)_mm_movemask_epi8(stop);
        *high |= _mm_movemask_epi8(text);
        if (mask) return at + __builtin_ctz(mask);
        at += 16;
    }
#elif defined(USE_NEON)
    const uint8x16_t quote = vdupq_n_u8('"'), slash = vdupq_n_u8('\\');
    const uint8x16_t control = vdupq_n_u8(0x1f);
    while (end - at >= 16) {
        uint8x16_t text = vld1q_u8(at);
        uint8x16_t stop = vorrq_u8(vceqq_u8(text, quote), vceqq_u8(text, slash));
        stop = vorrq_u8(stop, vcleq_u8(text, control));
        *high |= vmaxvq_u8(text) & 0x80;
        uint8x8_t narrow = vshrn_n_u16(vreinterpretq_u16_u8(stop), 4);
        uint64_t mask = vget_lane_u64(vreinterpret_u64_u8(narrow), 0);
        if (mask) return at + (__builtin_ctzll(mask) >> 2);
        at += 16;
    }
#endif
    for (; at < end; at++) {
        if (*at == '"' || *at == '\\' || *at < 0x20) return at;
        *high |= *at & 0x80;
    }
    return end;
}

/* Strict: no overlong forms, no surrogates, nothing beyond U+10FFFF. */
static int is_utf8(Text at, Text end) {
    while (at < end) {
        uint8_t first = *at;
        if (first < 0x80) {
            at++;
            continue;
        }
        ptrdiff_t more = first >= 0xf0 ? 3 : first >= 0xe0 ? 2 : 1;
        if (first < 0xc2 || first > 0xf4 || end - at <= more) return 0;
        uint8_t second = at[1];
        if ((first == 0xe0 && second < 0xa0) || (first == 0xed && second > 0x9f) ||
            (first == 0xf0 && second < 0x90) || (first == 0xf4 && second > 0x8f))
            return 0;
        for (ptrdiff_t i = 1; i <= more; i++)
            if ((at[i] & 0xc0) != 0x80) return 0;
        at += more + 1;
    }
    return 1;
}

static int hex_digit(uint8_t c) {
    if (c >= '0' && c <= '9') return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : NONE;
}

/* After the escape at `at`, a backslash; NULL when it is none, or a surrogate. */
static Text after_escape(Text at, Text end) {
    if (end - at < 2) return NULL;
    switch (at[1]) {
    case '"': case '\\': case '/': case 'b': case 'f': case 'n': case 'r': case 't':
        return at + 2;
    case 'u': break;
    default: return NULL;
    }
    if (end - at < 6) return NULL;
    int code = 0;
    for (int i = 2; i < 6; i++) {
        int digit = hex_digit(at[i]);
        if (digit < 0) return NULL;
        code = code * 16 + digit;
    }
    return code >= 0xd800 && code <= 0xdfff ? NULL : at + 6;
}

/* The closing quote of the string whose text begins at `at`; NULL when it is not a clean one. */
static inline Text string_end(Text at, Text end, int *escaped) {
    Text begin = at;
    int high = 0;
    for (;;) {
        at = plain_end(at, end, &high);
        if (UNLIKELY(at >= end)) return NULL;
        if (LIKELY(*at == '"')) break;
        if (*at != '\\') return NULL;
        *escaped = 1;
        at = after_escape(at, end);
        if (!at) return NULL;
    }
    return UNLIKELY(high) && !is_utf8(begin, at) ? NULL : at;
}

static const uint64_t POWERS[20] = {
    UINT64_C(1), UINT64_C(10), UINT64_C(100), UINT64_C(1000), UINT64_C(10000), UINT64_C(100000),
    UINT64_C(1000000), UINT64_C(10000000), UINT64_C(100000000), UINT64_C(1000000000),
    UINT64_C(10000000000), UINT64_C(100000000000), UINT64_C(1000000000000),
    UINT64_C(10000000000000), UINT64_C(100000000000000), UINT64_C(1000000000000000),
    UINT64_C(10000000000000000), UINT64_C(100000000000000000), UINT64_C(1000000000000000000),
    UINT64_C(10000000000000000000)};

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define ZEROS UINT64_C(0x3030303030303030)

/* How many digits the eight bytes begin with. */
static inline unsigned num_digits(uint64_t eight) {
    uint64_t numbers = eight ^ ZEROS;
    uint64_t others = ((numbers + UINT64_C(0x7676767676767676)) | numbers) &
                      UINT64_C(0x8080808080808080);
    return others ? (unsigned)__builtin_ctzll(others) >> 3 : 8;
}

/* Pairs of digits, then fours, then all eight. */
static inline uint64_t eight_digits(uint64_t eight) {
    eight -= ZEROS;
    eight = eight * 10 + (eight >> 8);
    return ((eight & UINT64_C(0x000000ff000000ff)) * UINT64_C(0x000f424000000064) +
            ((eight >> 16) & UINT64_C(0x000000ff000000ff)) * UINT64_C(0x0000271000000001)) >> 32;
}
#endif

/* After the digits at `at`, which are put behind those of `sum`. */
static inline Text digits_end(Text at, Text end, uint64_t *sum) {
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    while (end - at >= 8) {
        uint64_t eight = load8(at);
        unsigned num = num_digits(eight);
        if (num == 8) {
            *sum = *sum * POWERS[8] + eight_digits(eight);
            at += 8;
            continue;
        }
        if (num)
            *sum = *sum * POWERS[num] +
                   eight_digits(eight << (64 - 8 * num) | ZEROS >> (8 * num));
        return at + num;
    }
#endif
    while (at < end && (uint8_t)(*at - '0') < 10) *sum = *sum * 10 + (uint8_t)(*at++ - '0');
    return at;
}

/* The same where nobody asks for their value. */
static inline Text digits_skipped(Text at, Text end) {
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    while (end - at >= 8) {
        unsigned num = num_digits(load8(at));
        at += num;
        if (num < 8) return at;
    }
#endif
    while (at < end && (uint8_t)(*at - '0') < 10) at++;
    return at;
}

/* After the number at `at`; NULL when it is not JSON's. */
static inline Text number_end(Text at, Text end, Number *number) {
    number->digits = 0;
    number->num_decimals = 0;
    number->exponent = number->wide = 0;
    number->negative = at < end && *at == '-';
    at += number->negative;
    Text first = at;
    uint64_t digits = 0;
    at = digits_end(at, end, &digits);
    number->whole = digits;
    ptrdiff_t num = at - first;
    if (!num || (*first == '0' && num > 1)) return NULL;
    if (UNLIKELY(num == 20)) {
        /* The last digit may have been too much: seen where the sum became smaller. */
        uint64_t most = 0;
        for (Text digit = first; digit < at - 1; digit++)
            most = most * 10 + (uint8_t)(*digit - '0');
        number->wide = most > UINT64_MAX / 10 ||
                       UINT64_MAX - most * 10 < (uint64_t)(uint8_t)(at[-1] - '0');
    }
    if (at < end && *at == '.') {
        Text point = at;
        at = digits_end(at + 1, end, &digits);
        if (at - point < 2) return NULL;
        number->num_decimals = at - point - 1 > 1000 ? 1000 : (unsigned)(at - point - 1);
        num += at - point - 1;
        number->wide |= num > 19;
    }
    number->wide |= num > 20;
    number->num_digits = num > 1000 ? 1000 : (unsigned)num;
    number->digits = digits;
    if (UNLIKELY(at < end && (*at | 0x20) == 'e')) {
        number->exponent = 1;
        at++;
        if (at < end && (*at == '+' || *at == '-')) at++;
        Text power = at;
        while (at < end && (uint8_t)(*at - '0') < 10) at++;
        if (at == power || at - power > 2) return NULL;
    }
    return at;
}

/* The same where nobody asks for its value. */
static inline Text number_skipped(Text at, Text end) {
    Text first = at + (*at == '-');
    at = digits_skipped(first, end);
    if (UNLIKELY(at == first || (*first == '0' && at - first > 1))) return NULL;
    if (LIKELY(at < end && *at != '.' && (*at | 0x20) != 'e')) return at;
    Number number;
    return number_end(first, end, &number);
}

static inline Text literal_end(Text at, Text end, const char *word, ptrdiff_t size) {
    return end - at >= size && !memcmp(at, word, (size_t)size) ? at + size : NULL;
}

static inline int is_time_key(Text key, size_t size) {
    return (size == 2 && key[0] == 't' && key[1] == 's') ||
           (size == 3 && key[0] == 'd' && key[1] == 'u' && key[2] == 'r');
}

/* Notes a time that is not a whole number, wherever it stands: event_decoder.NOT_WHOLE. */
static void note_time(Scan *scan, Text at) {
    if (at < scan->end && *at == '"') scan->result.not_whole = 1;
    if (at < scan->end && *at == '-') at++;
    Text first = at;
    while (at < scan->end && (uint8_t)(*at - '0') < 10) at++;
    if (at > first && at < scan->end && (*at == '.' || (*at | 0x20) == 'e'))
        scan->result.not_whole = 1;
}

/* The key at `at`, a quote, up to the first character of its value; NULL when it is not clean or
 * has an escape: another spelling of a name. */
static inline Text key_end(Scan *scan, Text at, Text *key, size_t *size) {
    if (UNLIKELY(at >= scan->end || *at != '"')) return NULL;
    int escaped = 0;
    Text close = string_end(at + 1, scan->end, &escaped);
    if (UNLIKELY(!close || escaped)) return NULL;
    *key = at + 1;
    *size = (size_t)(close - at - 1);
    at = skip_blanks(close + 1, scan->end);
    if (UNLIKELY(at >= scan->end || *at != ':')) return NULL;
    return skip_blanks(at + 1, scan->end);
}

/* There are whole words at both. Nothing is not the same as nothing. */
static inline int is_same_text(Text one, Text other, size_t size) {
    size_t i = 0;
    for (; i + 8 <= size; i += 8)
        if (load8(one + i) != load8(other + i)) return 0;
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    uint64_t rest = (UINT64_C(1) << 8 * (size & 7)) - 1;
    if ((load8(one + i) ^ load8(other + i)) & rest) return 0;
#else
    for (; i < size; i++)
        if (one[i] != other[i]) return 0;
#endif
    return size != 0;
}

/* Remembers what stands from `at` to `after` as what follows guess number `before`; its own
 * number. */
static uint8_t remember(Scan *scan, uint8_t before, Text at, Text after, const Fields *fields,
                        int field, int is_time) {
    size_t size = (size_t)(after - at);
    if (size > MAX_GUESSED) return NO_GUESS;
    unsigned number;
    uint8_t slot = slot_of(at, size);
    for (; (number = scan->guess_slots[slot]); slot++) {
        const Guess *guess = &scan->guesses[number];
        if (guess->fields == fields && guess->size == size && !memcmp(guess->text, at, size)) break;
    }
    if (!number) {
        if (scan->num_guesses == NUM_GUESSES) return NO_GUESS;
        number = scan->guess_slots[slot] = (uint8_t)scan->num_guesses++;
        Guess *guess = &scan->guesses[number];
        guess->fields = fields;
        memcpy(guess->text, at, size);
        guess->size = (uint8_t)size;
        guess->field = (int8_t)field;
        guess->is_time = (uint8_t)is_time;
    }
    if (before != NO_GUESS) {
        uint8_t *next = scan->guesses[before].next;
        memmove(next + 1, next, NUM_NEXT - 1);
        next[0] = (uint8_t)number;
    }
    return (uint8_t)number;
}

/* next_key, where no guess is right. */
static Text read_key(Scan *scan, Text at, const Fields *fields, uint8_t *before, int *field) {
    const Text begin = at, end = scan->end;
    /* After nothing that was remembered there was a key: those before the first are. */
    int is_first = *before != NO_GUESS && *before < NUM_STARTS;
    at = skip_blanks(at, end);
    if (UNLIKELY(at >= end)) return NULL;
    if (*at == '}') {
        *field = ENDS;
        *before = remember(scan, *before, begin, at + 1, fields, ENDS, 0);
        return at + 1;
    }
    if (!is_first) {
        if (UNLIKELY(*at != ',')) return NULL;
        at = skip_blanks(at + 1, end);
    }
    Text key;
    size_t size;
    Text after = key_end(scan, at, &key, &size);
    if (UNLIKELY(!after)) return NULL;
    *field = field_of(fields, key, size);
    int is_time = *field < 0 && is_time_key(key, size);
    if (UNLIKELY(is_time)) note_time(scan, after);
    *before = remember(scan, *before, begin, after, fields, *field, is_time);
    return after;
}

/* From after a value, or after the brace that opens an object, to the next value: its field is a
 * number of `fields`, or NONE. Or to after the closing brace, with the field ENDS. `before` is the
 * guess that led to that value, and becomes this one's. */
static inline Text next_key(Scan *scan, Text at, const Fields *fields, uint8_t *before,
                            int *field) {
    if (LIKELY(scan->end - at >= MAX_GUESSED)) {
        const uint8_t *next = scan->guesses[*before].next;
        for (int i = 0; i < NUM_NEXT && next[i]; i++) {
            const Guess *guess = &scan->guesses[next[i]];
            if (!is_same_text(guess->text, at, guess->size)) continue;
            at += guess->size;
            *before = next[i];
            *field = guess->field;
            if (*field == ENDS) return at;
            at = skip_blanks(at, scan->end);
            if (UNLIKELY(guess->is_time)) note_time(scan, at);
            return at;
        }
    }
    return read_key(scan, at, fields, before, field);
}

/* After the value at `at`, whatever it is; NULL when it is not clean JSON. */
static Text value_end(Scan *scan, Text at) {
    const Text end = scan->end;
    uint64_t objects = 0; /* a bit for each level: is it an object, or a list */
    int depth = 0;
    int escaped = 0;
    Text key;
    size_t size;
    for (;;) {
        if (UNLIKELY(at >= end)) return NULL;
        switch (*at) {
        case '"':
            at = string_end(at + 1, end, &escaped);
            if (UNLIKELY(!at)) return NULL;
            at++;
            break;
        case '[':
        case '{': {
            uint8_t close = *at == '{' ? '}' : ']';
            if (UNLIKELY(depth == MAX_DEPTH)) return NULL;
            objects = objects << 1 | (close == '}');
            depth++;
            at = skip_blanks(at + 1, end);
            if (UNLIKELY(at >= end)) return NULL;
            if (*at == close) break; /* closed below */
            if (close == ']') continue;
            goto next_key;
        }
        case 't': at = literal_end(at, end, "true", 4); break;
        case 'f': at = literal_end(at, end, "false", 5); break;
        case 'n': at = literal_end(at, end, "null", 4); break;
        default: at = number_skipped(at, end);
        }
        if (UNLIKELY(!at)) return NULL;
        for (;;) {
            if (!depth) return at;
            at = skip_blanks(at, end);
            if (UNLIKELY(at >= end)) return NULL;
            if (*at == ',') break;
            if (UNLIKELY(*at != (objects & 1 ? '}' : ']'))) return NULL;
            objects >>= 1;
            depth--;
            at++;
        }
        at = skip_blanks(at + 1, end);
        if (!(objects & 1)) continue;
    next_key:
        at = key_end(scan, at, &key, &size);
        if (UNLIKELY(!at)) return NULL;
        if (UNLIKELY(is_time_key(key, size))) note_time(scan, at);
    }
}

/* The same; most are numbers. */
static inline Text value_skipped(Scan *scan, Text at) {
    if (LIKELY(at < scan->end && (uint8_t)(*at - '0') < 10)) return number_skipped(at, scan->end);
    return value_end(scan, at);
}

/* The same for a value that is looked at. */
static inline Text take_value(Scan *scan, Text at, Value *value, Number *number) {
    const Text end = scan->end;
    if (UNLIKELY(at >= end)) return NULL;
    Text after;
    value->at = at;
    value->escaped = 0;
    if (*at == '"') {
        after = string_end(at + 1, end, &value->escaped);
        if (UNLIKELY(!after)) return NULL;
        value->type = STRING;
        value->at = at + 1;
        value->size = (size_t)(after - value->at);
        return after + 1;
    }
    if (*at == '-' || (uint8_t)(*at - '0') < 10) {
        after = number_end(at, end, number);
        value->type = after && (number->num_decimals || number->exponent) ? DECIMAL : WHOLE;
    } else {
        value->type = *at == 'n' ? NULL_VALUE : *at == '{' ? OBJECT : ANY_OTHER;
        after = value_end(scan, at);
    }
    value->size = after ? (size_t)(after - at) : 0;
    return after;
}

static inline KnownValue *known_at(Scan *scan, int field, Text at) {
    return &scan->values[field][load8(at) * UINT64_C(0x9e3779b97f4a7c15) >> 59];
}

/* After a value that is as remembered; NULL where it is not. */
static inline Text known_value_end(Scan *scan, int field, Text at, Value *value) {
    if (UNLIKELY(scan->end - at < MAX_KNOWN + 8)) return NULL;
    const KnownValue *known = known_at(scan, field, at);
    if (!is_same_text(known->text, at, known->compared)) return NULL;
    int is_string = known->type == STRING;
    value->at = at + is_string;
    value->size = known->size;
    value->type = known->type;
    value->escaped = 0;
    value->id = known->id;
    return at + known->size + 2 * is_string;
}

static void remember_value(Scan *scan, int field, Value *value, Text after) {
    int is_string = value->type == STRING;
    if ((!is_string && value->type != WHOLE) || value->escaped) return;
    if (scan->end - after < MAX_KNOWN + 8 || (!is_string && *after != ',')) return;
    Text at = value->at - is_string;
    size_t compared = (size_t)(after - at) + !is_string;
    if (compared > MAX_KNOWN || scan->num_ids == UINT32_MAX) return;
    KnownValue *known = known_at(scan, field, at);
    memcpy(known->text, at, compared);
    known->compared = (uint8_t)compared;
    known->size = (uint8_t)value->size;
    known->type = value->type;
    known->id = value->id = ++scan->num_ids;
}

/* The same as take_value for one of the fields with few values. */
static inline Text take_few(Scan *scan, int field, Text at, Value *value) {
    Text after = known_value_end(scan, field, at, value);
    if (LIKELY(after != NULL)) return after;
    Number number = {0};
    after = take_value(scan, at, value, &number);
    value->id = 0;
    if (UNLIKELY(!after || (value->type == WHOLE && number.wide))) return NULL;
    remember_value(scan, field, value, after);
    return after;
}

/* ---------------------------------------------------------------- numbers */

/* A whole number as _ints of event_decoder.py gives it: beyond 64 bits it is NONE. */
static inline int64_t whole(const Number *number) {
    if (number->negative)
        return number->digits <= UINT64_C(1) << 63 ? (int64_t)(0 - number->digits) : NONE;
    return number->digits <= INT64_MAX ? (int64_t)number->digits : NONE;
}

/* A number written as text. 0 when what Python makes of it is not certain here. */
static int whole_of_string(const Value *value, int64_t *out) {
    Text at = value->at, end = value->at + value->size;
    int has_digit = 0;
    *out = NONE;
    for (; at < end; at++) {
        if (*at >= 0x80 || *at == '\\') return 0;
        has_digit |= (uint8_t)(*at - '0') < 10;
    }
    if (!has_digit) return 1; /* no number, or one of float's: inf, nan */
    for (at = value->at; at < end; at++) {
        uint8_t lower = *at | 0x20;
        /* A letter that no number has. */
        if (lower >= 'a' && lower <= 'z' && !strchr("einfaty", lower)) return 1;
    }
    Number number;
    Text digits = value->at + (value->at < end && *value->at == '-');
    uint64_t sum = 0;
    if (end - digits > 18) return 0;
    for (at = digits; at < end; at++) {
        if ((uint8_t)(*at - '0') >= 10) return 0;
        sum = sum * 10 + (uint8_t)(*at - '0');
    }
    number.digits = sum;
    number.negative = digits > value->at;
    *out = whole(&number);
    return 1;
}

/* The value of a field that is `int | str | None`; 0 when it is not. */
static inline int take_whole(const Value *value, const Number *number, int64_t *out) {
    if (LIKELY(value->type == WHOLE)) {
        *out = whole(number);
        return !number->wide;
    }
    *out = NONE;
    if (value->type == STRING) return whole_of_string(value, out);
    return value->type == NULL_VALUE;
}

/* nanoseconds.ns_from_text: exact, a half to the even one. */
static inline int64_t ns_of_digits(const Number *number) {
    uint64_t ns;
    if (LIKELY(number->num_decimals <= 3)) {
        ns = number->digits * POWERS[3 - number->num_decimals];
    } else {
        uint64_t unit = POWERS[number->num_decimals - 3];
        uint64_t rest = number->digits % unit;
        ns = number->digits / unit;
        ns += rest > unit / 2 || (rest == unit / 2 && (ns & 1));
    }
    return number->negative ? -(int64_t)ns : (int64_t)ns;
}

/* nanoseconds.ns_from_double. Digits and a power of ten that are both exact as doubles divide to
 * the double nearest to the text, which is what a decoder of JSON gives. */
static int64_t ns_of_double(const Number *number) {
    double us = (double)number->digits / (double)POWERS[number->num_decimals];
    us = number->negative ? -us : us;
    double down = floor(us);
    return (int64_t)down * 1000 + (int64_t)rint((us - down) * 1000.0);
}

/* Nanoseconds of a time; 0 where that must be left to Python. */
static inline int take_time(Scan *scan, const Number *number, int as_text, int64_t *ns) {
    if (UNLIKELY(number->exponent || number->num_digits > 19 || number->num_decimals > 15))
        return 0;
    uint64_t us = number->whole;
    if (UNLIKELY(us > MAX_US)) return 0;
    if (!as_text) {
        if (UNLIKELY(us >= EXACT_DOUBLE_US - 1)) {
            /* A double may be rounded up to the border. */
            if (us < EXACT_DOUBLE_US && number->num_decimals) return 0;
            scan->result.beyond_doubles |= us >= EXACT_DOUBLE_US;
        }
        if (UNLIKELY(number->num_decimals > 3)) {
            if (number->digits >= UINT64_C(1) << 53) return 0;
            *ns = ns_of_double(number);
            return 1;
        }
    }
    *ns = ns_of_digits(number);
    return 1;
}

/* ---------------------------------------------------------------- events */

typedef struct {
    Value values[NUM_EVENT_FIELDS];
    Number ts, dur;
    unsigned seen;
    int32_t name; /* its number, where it has one and was looked up */
} Event;

static inline int32_t *name_guess(Scan *scan) {
    const int32_t *last = scan->last_names;
    uint64_t mix = (uint64_t)(uint32_t)last[0] * UINT64_C(0x9e3779b97f4a7c15) ^
                   (uint64_t)(uint32_t)last[1] * UINT64_C(0xd6e8feb86659fd93) ^
                   (uint64_t)(uint32_t)last[2] * UINT64_C(0xc2b2ae3d27d4eb4f);
    return &scan->name_guesses[(mix ^ mix >> 32) % NUM_NAME_GUESSES];
}

static inline int32_t *detail_guess(Scan *scan, int32_t name) {
    uint64_t mix = (uint64_t)(uint32_t)name * UINT64_C(0x9e3779b97f4a7c15) ^
                   (uint64_t)(uint32_t)scan->last_detail * UINT64_C(0xd6e8feb86659fd93);
    return &scan->detail_guesses[(mix ^ mix >> 32) % NUM_DETAIL_GUESSES];
}

/* After the name of a complete event, which is looked up. */
static inline Text take_name(Scan *scan, Text at, Event *event) {
    Value *value = &event->values[F_NAME];
    const Table *table = &scan->tables[NAMES];
    int32_t guess = *name_guess(scan) - 1;
    if (guess >= 0 && (uint32_t)guess < table->num && at < scan->end && *at == '"') {
        size_t size;
        Text known = key_of(table, (uint32_t)guess, &size);
        if ((size_t)(scan->end - at) >= size + 2 && at[size + 1] == '"' &&
            (!size || !memcmp(at + 1, known, size))) {
            value->at = at + 1;
            value->size = size;
            value->type = STRING;
            value->escaped = 0;
            event->name = guess;
            return at + size + 2;
        }
    }
    Number number = {0};
    Text after = take_value(scan, at, value, &number);
    if (LIKELY(after && value->type == STRING)) {
        uint64_t code = hash(value->at, value->size, scan->seed);
        event->name = found(table, value->at, value->size, code);
    }
    return after;
}

static inline void remember_name(Scan *scan, int32_t name) {
    *name_guess(scan) = name + 1;
    scan->last_names[2] = scan->last_names[1];
    scan->last_names[1] = scan->last_names[0];
    scan->last_names[0] = name;
}

static int reserve_row(Scan *scan) {
    Result *result = &scan->result;
    if (LIKELY((size_t)result->num_rows < scan->max_rows)) return 1;
    size_t max = scan->max_rows, wanted = max ? 2 * max : 4096;
#define X(name, type)                                                                         \
    max = scan->max_rows;                                                                     \
    if (!grow((void **)&result->name, &max, wanted, sizeof(type))) return 0;
    COLUMNS(X)
#undef X
    scan->max_rows = max;
    return 1;
}

/* Each returns 1, or 0 when the chunk is not clean (or `no_memory` is set). */

static int no_memory(Scan *scan) {
    scan->no_memory = 1;
    return 0;
}

static Text raw_of(const Value *value, size_t *size) {
    *size = value->type == MISSING ? 0 : value->size;
    if (value->type != STRING) return value->at;
    *size += 2;
    return value->at - 1;
}

static int reserve_scratch(Scan *scan, size_t size) {
    return size <= scan->max_scratch || grow((void **)&scan->scratch, &scan->max_scratch, size, 1);
}

/* The number of several values' text, joined by zero bytes. */
static int32_t number_of_values(Scan *scan, Table *table, const Value *const *values, int num) {
    size_t total = (size_t)num, size;
    for (int i = 0; i < num; i++) {
        raw_of(values[i], &size);
        total += size;
    }
    if (!reserve_scratch(scan, total)) return NONE;
    uint8_t *to = scan->scratch;
    for (int i = 0; i < num; i++) {
        Text from = raw_of(values[i], &size);
        if (i) *to++ = 0;
        if (size) memcpy(to, from, size);
        to += size;
    }
    return number_of(table, scan->scratch, (size_t)(to - scan->scratch), scan->seed);
}

static inline int is_same(const Value *one, const Value *other) {
    if (LIKELY(one->id && other->id)) return one->id == other->id;
    return one->type == other->type && one->size == other->size &&
           (!one->size || !memcmp(one->at, other->at, one->size));
}

static int32_t take_thread(Scan *scan, const Value *pid, const Value *tid) {
    if (!is_same(&scan->last_tid, tid) || !is_same(&scan->last_pid, pid)) {
        const Value *const place[2] = {pid, tid};
        scan->last_thread_number = number_of_values(scan, &scan->tables[THREADS], place, 2);
        scan->last_pid = *pid;
        scan->last_tid = *tid;
    }
    return scan->last_thread_number;
}

static int take_category(Scan *scan, const Value *value, int32_t *number) {
    Table *table = &scan->tables[CATEGORIES];
    Value *last = &scan->last_category;
    if (is_same(last, value)) {
        *number = scan->last_category_number;
        return 1;
    }
    size_t size = value->type == MISSING ? 0 : value->size;
    uint32_t before = table->num;
    *number = number_of(table, value->at, size, scan->seed);
    if (*number < 0) return no_memory(scan);
    if (table->num > before) {
        if (!reserve_scratch(scan, size) ||
            !grow((void **)&scan->kinds, &scan->max_kinds, table->num, 1))
            return no_memory(scan);
        for (size_t i = 0; i < size; i++) {
            uint8_t c = value->at[i];
            if (c >= 0x80 || c == '\\') return 0;
            scan->scratch[i] = c >= 'A' && c <= 'Z' ? c | 0x20 : c;
        }
        int32_t known = found(&scan->known, scan->scratch, size,
                              hash(scan->scratch, size, scan->seed));
        scan->kinds[*number] = known < 0 ? OTHER : scan->known_kinds[known];
    }
    *last = *value;
    scan->last_category_number = *number;
    return 1;
}

enum { NUM_DETAILS = HOST_COLLECTIVES - OP_DETAILS, NUM_SIDES = NUM_TABLES - HOST_COLLECTIVES };

/* What details consist of, by table: the first of Args' texts, and how many. */
static const int PARTS[NUM_DETAILS][2] = {{A_TYPES - NUM_NUMBERS, 4},
                                          {A_GRID - NUM_NUMBERS, MAX_PARTS}};

/* The details that an event of this name is likely to have. */
static void guess_details(Scan *scan, int32_t name) {
    GuessedDetails *guessed = &scan->guessed;
    guessed->code = NONE;
    guessed->num = 0;
    if (name < 0) return;
    int32_t code = *detail_guess(scan, name) - 1;
    if (code < 0) return;
    const Table *table = &scan->tables[OP_DETAILS + code % NUM_DETAILS];
    uint32_t number = (uint32_t)(code / NUM_DETAILS);
    if (number >= table->num) return;
    size_t size;
    Text at = key_of(table, number, &size), end = at + size;
    guessed->code = code;
    guessed->first = PARTS[code % NUM_DETAILS][0];
    guessed->num = PARTS[code % NUM_DETAILS][1];
    guessed->has = guessed->same = 0;
    for (int i = 0; i < guessed->num; i++) {
        Text stop = memchr(at, 0, (size_t)(end - at));
        if (!stop) stop = end;
        guessed->parts[i] = at;
        guessed->sizes[i] = (size_t)(stop - at);
        guessed->has |= (unsigned)(stop > at) << i;
        at = stop < end ? stop + 1 : end;
    }
}

/* After the text of a field that is as guessed; NULL where it is not. */
static inline Text guessed_text_end(Scan *scan, int text, Text at) {
    GuessedDetails *guessed = &scan->guessed;
    unsigned part = (unsigned)(text - guessed->first);
    if (part >= (unsigned)guessed->num) return NULL;
    guessed->same &= ~(1u << part);
    size_t size = guessed->sizes[part];
    if (!size || (size_t)(scan->end - at) <= size || memcmp(at, guessed->parts[part], size))
        return NULL;
    uint8_t next = at[size];
    int ends_itself = *at == '[' || *at == '"' || *at == '{';
    if (!ends_itself && next != ',' && next != '}' && next > ' ') return NULL;
    guessed->same |= 1u << part;
    return at + size;
}

static int take_details(Scan *scan, int table, int32_t *code) {
    const Value *parts[MAX_PARTS];
    static const Value nothing = {0};
    const GuessedDetails *guessed = &scan->guessed;
    const int first = PARTS[table - OP_DETAILS][0], num = PARTS[table - OP_DETAILS][1];
    *code = NONE;
    unsigned has = (unsigned)(scan->args.has >> first & ((UINT64_C(1) << num) - 1));
    if (!has) return 1;
    if (guessed->code != NONE && guessed->first == first && guessed->has == has &&
        guessed->same == has) {
        *code = guessed->code;
        return 1;
    }
    for (int i = 0; i < num; i++)
        parts[i] = scan->args.has >> (first + i) & 1 ? &scan->args.texts[first + i] : &nothing;
    int32_t number = number_of_values(scan, &scan->tables[table], parts, num);
    *code = number * NUM_DETAILS + table - OP_DETAILS;
    return number >= 0 || no_memory(scan);
}

static int take_collective(Scan *scan, int table, int32_t *code) {
    enum { FIRST = A_COLLECTIVE - NUM_NUMBERS, NUM = NUM_ARGS - A_COLLECTIVE };
    const Value *parts[NUM];
    static const Value nothing = {0};
    *code = NONE;
    if (LIKELY(!(scan->args.has >> FIRST & 1))) return 1;
    for (int i = 0; i < NUM; i++)
        parts[i] = scan->args.has >> (FIRST + i) & 1 ? &scan->args.texts[FIRST + i] : &nothing;
    int32_t number = number_of_values(scan, &scan->tables[table], parts, NUM);
    *code = number * NUM_SIDES + table - HOST_COLLECTIVES;
    return number >= 0 || no_memory(scan);
}

static Text read_args(Scan *scan, const Event *event, Text at) {
    Args *args = &scan->args;
    const Value *category = &event->values[F_CAT];
    uint8_t before = AT_ARGS;
    guess_details(scan, event->name);
    if (category->type == STRING && category->size)
        before += (uint8_t)(category->size + category->at[0]) % NUM_ARGS_STARTS;
    int field;
    Value value;
    Number number = {0};
    for (int i = 0; i < NUM_NUMBERS; i++) args->numbers[i] = NONE;
    args->has = 0;
    at++;
    for (;;) {
        at = next_key(scan, at, &scan->args_fields, &before, &field);
        if (UNLIKELY(!at)) return NULL;
        if (field == ENDS) return at;
        if (field < 0) {
            at = value_skipped(scan, at);
        } else if (field < NUM_NUMBERS) {
            at = take_value(scan, at, &value, &number);
            if (at && !take_whole(&value, &number, &args->numbers[field])) return NULL;
        } else {
            Text begin = at;
            at = guessed_text_end(scan, field - NUM_NUMBERS, begin);
            if (!at) at = value_skipped(scan, begin);
            Value *text = &args->texts[field - NUM_NUMBERS];
            text->at = begin;
            text->type = ANY_OTHER;
            text->size = at ? (size_t)(at - begin) : 0;
            args->has |= UINT64_C(1) << (field - NUM_NUMBERS);
        }
        if (UNLIKELY(!at)) return NULL;
    }
}

/* A stream or device that stands in the thread or process instead. */
static int64_t placed(const Value *value, int *clean) {
    int64_t out = NONE;
    Number number = {0};
    if (value->type == STRING) *clean &= whole_of_string(value, &out);
    if (value->type == WHOLE) {
        number_end(value->at, value->at + value->size, &number);
        out = whole(&number);
    }
    return out;
}

static int fill_device(Scan *scan, const Event *event, int64_t row, int kind) {
    Result *result = &scan->result;
    const int64_t *numbers = scan->args.numbers;
    int64_t stream = numbers[A_STREAM], device = numbers[A_DEVICE];
    int clean = 1;
    if (kind != SYNC && stream == NONE) stream = placed(&event->values[F_TID], &clean);
    if (kind != SYNC && device == NONE) device = placed(&event->values[F_PID], &clean);
    result->correlation[row] = numbers[A_CORRELATION];
    result->external[row] = numbers[A_EXTERNAL];
    result->size_bytes[row] = numbers[A_BYTES];
    result->stream[row] = stream;
    result->device[row] = (int16_t)(device < NONE ? NONE : device > INT16_MAX ? INT16_MAX : device);
    int32_t *detail = &result->detail[row];
    if (kind == KERNEL)
        clean &= take_details(scan, LAUNCH_DETAILS, detail);
    return clean && take_collective(scan, DEVICE_COLLECTIVES, &result->collective[row]);
}

static int fill_kind(Scan *scan, const Event *event, int64_t row, int kind) {
    Result *result = &scan->result;
    const int64_t *numbers = scan->args.numbers;
    switch (kind) {
    case OP:
    case MARK:
        result->external[row] = numbers[A_EXTERNAL];
        result->sequence[row] = numbers[A_SEQUENCE];
        result->fwd_thread[row] = numbers[A_FWD_THREAD];
        return take_details(scan, OP_DETAILS, &result->detail[row]) &&
               take_collective(scan, HOST_COLLECTIVES, &result->collective[row]);
    case RUNTIME:
        result->correlation[row] = numbers[A_CORRELATION];
        result->external[row] = numbers[A_EXTERNAL];
        result->size_bytes[row] = numbers[A_BYTES] == NONE ? numbers[A_SIZE] : numbers[A_BYTES];
        return 1;
    case KERNEL: case MEMCPY: case MEMSET: case SYNC:
        return fill_device(scan, event, row, kind);
    default: return 1;
    }
}

/* A time that may be missing: whether it is there and is a number. */
static inline int is_time(const Value *value) {
    return value->type == WHOLE || value->type == DECIMAL;
}

static int finish_complete(Scan *scan, Event *event) {
    Result *result = &scan->result;
    const Value *values = event->values;
    int64_t start = 0, dur = 0;
    int32_t category, name, thread;
    if (values[F_CAT].type > STRING || values[F_NAME].type > STRING) return 0;
    if (values[F_TS].type != MISSING &&
        !(is_time(&values[F_TS]) && take_time(scan, &event->ts, scan->as_text, &start)))
        return 0;
    if (values[F_DUR].type != MISSING &&
        !(is_time(&values[F_DUR]) && take_time(scan, &event->dur, scan->as_text, &dur)))
        return 0;
    if (values[F_TS].type == MISSING) {
        result->num_no_time++;
        return 1;
    }
    result->num_no_duration += values[F_DUR].type == MISSING;
    result->num_negative += dur < 0;
    if (!reserve_row(scan)) return no_memory(scan);
    if (!take_category(scan, &values[F_CAT], &category)) return 0;
    name = event->name;
    if (UNLIKELY(name < 0))
        name = number_of(&scan->tables[NAMES], values[F_NAME].at, values[F_NAME].size, scan->seed);
    thread = take_thread(scan, &values[F_PID], &values[F_TID]);
    if (name < 0 || thread < 0) return no_memory(scan);
    int64_t row = result->num_rows;
    int kind = scan->kinds[category];
    result->start_ns[row] = start;
    result->dur_ns[row] = dur < 0 ? 0 : dur;
    result->kind[row] = (uint8_t)kind;
    result->category[row] = category;
    result->name[row] = name;
    result->thread[row] = thread;
    result->device[row] = NONE;
    result->stream[row] = result->correlation[row] = result->external[row] = NONE;
    result->sequence[row] = result->fwd_thread[row] = result->size_bytes[row] = NONE;
    result->detail[row] = result->collective[row] = NONE;
    result->num_rows++;
    if (!fill_kind(scan, event, row, kind)) return 0;
    remember_name(scan, name);
    if (result->detail[row] != NONE) {
        *detail_guess(scan, name) = result->detail[row] + 1;
        scan->last_detail = result->detail[row];
    }
    return 1;
}

static int is_text(const Value *value, const char *text) {
    return value->type == STRING && value->size == strlen(text) &&
           !memcmp(value->at, text, value->size);
}

/* Of the members of an object, the last value of the one called `name`. */
static int read_label(Scan *scan, Text at, Value *name) {
    Text key;
    size_t size;
    *name = (Value){0};
    at = skip_blanks(at + 1, scan->end);
    if (at < scan->end && *at == '}') return 1;
    for (;;) {
        at = key_end(scan, at, &key, &size);
        if (!at) return 0;
        Text begin = at;
        at = value_end(scan, at);
        if (!at) return 0;
        if (size == 4 && !memcmp(key, "name", 4)) {
            name->at = begin;
            name->size = (size_t)(at - begin);
            name->type = ANY_OTHER;
        }
        at = skip_blanks(at, scan->end);
        if (at >= scan->end) return 0;
        if (*at == '}') return 1;
        if (*at != ',') return 0;
        at = skip_blanks(at + 1, scan->end);
    }
}

static int finish_meta(Scan *scan, Event *event) {
    Result *result = &scan->result;
    const Value *args = &event->values[F_ARGS], *name = &event->values[F_NAME];
    if (name->type > STRING || name->escaped) return 0;
    if (args->type != MISSING && args->type != NULL_VALUE && args->type != OBJECT) return 0;
    if (args->type != OBJECT || !is_text(name, "thread_name")) return 1;
    Value label;
    if (!read_label(scan, args->at, &label)) return 0;
    if (label.type == MISSING) return 1;
    if (!grow((void **)&result->labels, &scan->max_labels, (size_t)result->num_labels + 1,
              LABEL_WIDTH * sizeof(int64_t)))
        return no_memory(scan);
    int64_t *out = result->labels + LABEL_WIDTH * result->num_labels++;
    const Value *const parts[3] = {&event->values[F_PID], &event->values[F_TID], &label};
    for (int i = 0; i < 3; i++) {
        size_t size;
        Text raw = raw_of(parts[i], &size);
        out[2 * i] = size ? raw - scan->begin : 0;
        out[2 * i + 1] = (int64_t)size;
    }
    return 1;
}

/* Reads the arguments of an allocator's event; `has_bytes` as event_decoder._memory sees it. */
static int read_memory(Scan *scan, Text at, int64_t *out, int *has_bytes) {
    Text key;
    size_t size;
    Value value;
    Number number = {0};
    *has_bytes = 0;
    for (int i = 0; i < NUM_INSTANT_FIELDS; i++) out[i] = NONE;
    at = skip_blanks(at + 1, scan->end);
    if (at < scan->end && *at == '}') return 1;
    for (;;) {
        at = key_end(scan, at, &key, &size);
        if (!at) return 0;
        int field = field_of(&scan->instant_fields, key, size);
        at = take_value(scan, at, &value, &number);
        if (!at) return 0;
        if (field >= 0 && !take_whole(&value, &number, &out[field])) return 0;
        if (field == 0)
            *has_bytes = value.type != WHOLE || !number.negative || number.digits != 1;
        at = skip_blanks(at, scan->end);
        if (at >= scan->end) return 0;
        if (*at == '}') return 1;
        if (*at != ',') return 0;
        at = skip_blanks(at + 1, scan->end);
    }
}

static int finish_instant(Scan *scan, Event *event) {
    Result *result = &scan->result;
    const Value *args = &event->values[F_ARGS], *name = &event->values[F_NAME];
    const Value *ts = &event->values[F_TS];
    if (event->values[F_CAT].type > STRING || name->type > STRING || name->escaped) return 0;
    if (args->type == MISSING || args->type == NULL_VALUE) return 1;
    int64_t row[MEMORY_WIDTH];
    int has_bytes;
    if (args->type != OBJECT || !read_memory(scan, args->at, row + 1, &has_bytes)) return 0;
    if (!has_bytes || !is_text(name, "[memory]")) return 1;
    result->num_memory_seen++;
    if (ts->type == MISSING) {
        result->num_no_time++;
        return 1;
    }
    if (!is_time(ts) || !take_time(scan, &event->ts, 1, &row[0])) return 0;
    if (!grow((void **)&result->memory, &scan->max_memory, (size_t)result->num_memory + 1,
              sizeof row))
        return no_memory(scan);
    memcpy(result->memory + MEMORY_WIDTH * result->num_memory++, row, sizeof row);
    return 1;
}

static int finish(Scan *scan, Event *event, uint8_t phase) {
    switch (scan->phases[phase]) {
    case COMPLETE: return finish_complete(scan, event);
    case META: return finish_meta(scan, event);
    case INSTANT: return finish_instant(scan, event);
    case SKIPPED: scan->result.phases[phase]++; return 1;
    default: return 0;
    }
}

/* The members of an event, from after its opening brace to after its closing one; NULL when it is
 * not clean. */
static Text read_members(Scan *scan, Text at, Event *event, int *phase) {
    const Text end = scan->end;
    Value *values = event->values;
    Number number = {0};
    uint8_t before = AT_EVENT;
    int field;
    for (;;) {
        at = next_key(scan, at, &scan->event_fields, &before, &field);
        if (UNLIKELY(!at)) return NULL;
        if (field == ENDS) return at;
        if (field < 0) {
            at = value_skipped(scan, at);
            if (UNLIKELY(!at)) return NULL;
            continue;
        }
        if (UNLIKELY(event->seen >> field & 1)) return NULL;
        event->seen |= 1u << field;
        Value *value = &values[field];
        if (field < NUM_FEW) {
            at = take_few(scan, field, at, value);
        } else if (field == F_ARGS && *phase == COMPLETE && at < end && *at == '{') {
            value->type = OBJECT;
            value->at = NULL; /* read */
            at = read_args(scan, event, at);
        } else if (field == F_NAME && *phase == COMPLETE) {
            at = take_name(scan, at, event);
        } else {
            at = take_value(scan, at, value, field == F_TS    ? &event->ts
                                             : field == F_DUR ? &event->dur
                                                              : &number);
        }
        if (UNLIKELY(!at)) return NULL;
        if (field == F_PH) {
            if (value->type != STRING || value->size != 1 || *value->at >= NUM_PHASES) return NULL;
            *phase = scan->phases[*value->at];
        } else if (field == F_TS || field == F_DUR) {
            scan->result.not_whole |= value->type == STRING || value->type == DECIMAL;
        }
    }
}

static Text read_event(Scan *scan, Text at) {
    Event event;
    event.seen = 0;
    event.name = NONE;
    for (int i = 0; i < NUM_EVENT_FIELDS; i++) {
        event.values[i].type = MISSING;
        event.values[i].at = scan->begin;
        event.values[i].size = 0;
        event.values[i].escaped = 0;
        event.values[i].id = 0;
    }
    if (UNLIKELY(at >= scan->end || *at != '{')) return NULL;
    int phase = REFUSED;
    Text after = read_members(scan, at + 1, &event, &phase);
    if (UNLIKELY(!after || !(event.seen & 1u << F_PH))) return NULL;
    if (phase == COMPLETE || phase == META) {
        int place = event.values[F_PID].type;
        if (place != MISSING && place != STRING && place != WHOLE) return NULL;
        place = event.values[F_TID].type;
        if (place != MISSING && place != STRING && place != WHOLE) return NULL;
    }
    if (phase == COMPLETE) {
        Value *args = &event.values[F_ARGS];
        if (args->type == MISSING) {
            for (int i = 0; i < NUM_NUMBERS; i++) scan->args.numbers[i] = NONE;
            scan->args.has = 0;
            scan->guessed.code = NONE;
        } else if (args->type != OBJECT) {
            return NULL;
        } else if (args->at && !read_args(scan, &event, args->at)) {
            return NULL; /* they stand before the phase */
        }
    }
    return finish(scan, &event, *event.values[F_PH].at) ? after : NULL;
}

static int read_chunk(Scan *scan) {
    Text at = skip_blanks(scan->begin, scan->end);
    if (at == scan->end) return OK;
    for (;;) {
        at = read_event(scan, at);
        if (UNLIKELY(!at)) return scan->no_memory ? NO_MEMORY : NOT_CLEAN;
        scan->result.num_raw++;
        at = skip_blanks(at, scan->end);
        if (at == scan->end) return OK;
        if (UNLIKELY(*at != ',')) return NOT_CLEAN;
        at = skip_blanks(at + 1, scan->end);
    }
}

/* ---------------------------------------------------------------- for Python */

EXPORT int stepscope_abi(void) { return ABI_VERSION; }

EXPORT void stepscope_scan_free(void *handle) {
    Scan *scan = handle;
    if (!scan) return;
    for (int i = 0; i < NUM_TABLES; i++) empty(&scan->tables[i]);
    empty(&scan->known);
    free(scan->known_kinds);
    free(scan->kinds);
    free(scan->scratch);
#define X(name, type) free(scan->result.name);
    COLUMNS(X)
#undef X
    free(scan->result.memory);
    free(scan->result.labels);
    free(scan);
}

/* A handle, or NULL without memory. `phases`: NUM_PHASES bytes; `categories`: lower-case names,
 * each ended by a zero byte, and the kind of each. */
EXPORT void *stepscope_scan_new(uint64_t seed, const uint8_t *phases, const char *categories,
                                const uint8_t *kinds, int64_t num_categories) {
    Scan *scan = calloc(1, sizeof *scan);
    if (!scan) return NULL;
    scan->seed = seed;
    name_fields(&scan->event_fields, EVENT_FIELDS, NUM_EVENT_FIELDS);
    name_fields(&scan->args_fields, ARGS_FIELDS, NUM_ARGS);
    name_fields(&scan->instant_fields, INSTANT_FIELDS, NUM_INSTANT_FIELDS);
    memcpy(scan->phases, phases, NUM_PHASES);
    scan->num_guesses = NUM_STARTS;
    scan->known_kinds = malloc((size_t)num_categories + 1);
    int good = scan->known_kinds != NULL;
    for (int64_t i = 0; good && i < num_categories; i++) {
        size_t size = strlen(categories);
        int32_t number = number_of(&scan->known, (Text)categories, size, seed);
        good = number == i;
        if (good) scan->known_kinds[i] = kinds[i];
        categories += size + 1;
    }
    if (!good) {
        stepscope_scan_free(scan);
        return NULL;
    }
    return scan;
}

/* Takes the keys that the last chunk brought out of the tables again. */
EXPORT void stepscope_scan_take_back(void *handle) {
    Scan *scan = handle;
    for (int i = 0; i < NUM_TABLES; i++) take_back(&scan->tables[i], scan->before[i]);
}

/* Scans whole events, separated by commas. `as_text`: times as ns_from_text makes them, not as
 * ns_from_double. What `stepscope_scan_result` tells then holds until the next call. */
EXPORT int stepscope_scan(void *handle, const uint8_t *text, int64_t size, int as_text) {
    Scan *scan = handle;
    Result *result = &scan->result;
    for (int i = 0; i < NUM_TABLES; i++) scan->before[i] = scan->tables[i].num;
    result->num_rows = result->num_raw = 0;
    result->num_no_time = result->num_no_duration = result->num_negative = 0;
    result->num_memory_seen = result->num_memory = result->num_labels = 0;
    memset(result->phases, 0, sizeof result->phases);
    scan->begin = text;
    scan->end = text + size;
    scan->as_text = as_text;
    result->not_whole = result->beyond_doubles = scan->no_memory = 0;
    scan->last_category.type = scan->last_pid.type = scan->last_tid.type = ANY_OTHER;
    scan->last_category.id = scan->last_pid.id = scan->last_tid.id = 0;
    int status = read_chunk(scan);
    if (status != OK) stepscope_scan_take_back(handle);
    return status;
}

EXPORT const Result *stepscope_scan_result(void *handle) { return &((Scan *)handle)->result; }

EXPORT void stepscope_scan_table(void *handle, int which, TableView *view) {
    const Table *table = &((Scan *)handle)->tables[which];
    view->bytes = table->bytes;
    view->ends = table->ends;
    view->num = table->num;
}

/* The names of arguments, for the test that they are those of records.py. */
EXPORT const char *stepscope_scan_argument(int number) {
    if (number >= 0 && number < NUM_ARGS) return ARGS_FIELDS[number];
    number -= NUM_ARGS;
    return number >= 0 && number < NUM_INSTANT_FIELDS ? INSTANT_FIELDS[number] : NULL;
}
