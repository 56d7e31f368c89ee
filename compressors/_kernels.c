/* The inner loops of the codecs, for CPUs.
 *
 * What they compute is defined by the torch code beside each codec (rows.py, qsgd.py, ...): the same bytes to
 * the last bit. Hence no fused multiply-add (-ffp-contract=off), no -ffast-math, one rounding per operation,
 * and sums in the order of stats.tree_sum. Plain loops, which gcc and clang vectorise; no Python.h, so a build
 * needs a C compiler and nothing else. Called through ctypes (kernels.py), which lets go of Python's lock.
 */

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifndef _WIN32
#include <pthread.h>
#endif

/* Changes with `struct job`, the exported functions or the bytes; kernels.py compares it. */
#define ABI 3

#ifdef _WIN32
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif

#if defined(__GNUC__)
#define INLINE static inline __attribute__((always_inline))
#else
#define INLINE static inline
#endif

/* One copy of the loops per instruction set, chosen when the library is loaded. */
#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 12
#define DISPATCHED __attribute__((target_clones("default", "avx2", "arch=x86-64-v4")))
#elif defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && \
    (!defined(__clang__) || __clang_major__ >= 14)
#define DISPATCHED __attribute__((target_clones("default", "avx2")))
#else
#define DISPATCHED
#endif

#define CHUNK 512 /* values that are packed together, and that make one partial sum */
#define MAX_THREADS 256
#define INF_BITS 0x7f800000

enum stat { STAT_NONE, STAT_MAX, STAT_L2, STAT_CLIP, STAT_RANGE, STAT_MEAN, STAT_MEANS };
enum code { CODE_LEVELS, CODE_RANGE, CODE_SIGN, CODE_NATURAL };

/* The same in kernels.py. */
struct job {
    const float *x;   /* [n] encode reads it */
    float *out;       /* [n] decode writes it, or adds to it; select: the values found */
    uint8_t *payload; /* tables x rows float32, then the planes of the codes */
    double *stats;    /* [chunks x 3] chunk_stats writes it */
    int32_t *index;   /* select: [n], the places found */
    int64_t *counts;  /* select: [tiles] */
    const int64_t *places; /* grid: of each row, its number among the rows of its width */
    const int64_t *groups; /* grid: [33 x 2], of each width where its bytes start and how many values it has */
    int64_t n, block, tile;
    int32_t stat, code, width, tables;
    int32_t do_tables, do_codes; /* encode: which of its two halves */
    int32_t nearest, add, threads;
    int32_t shift, offset; /* a code is (int(value) + offset + noise of `shift` bits) >> shift */
    float bound;           /* |value| up to this */
    float step;            /* decode: 1 / levels */
    float alpha;
    int32_t least; /* select: bits of the smallest magnitude */
    double clip;
    uint32_t key0, key1;
    int64_t next; /* tile to do next */
    int32_t bad;  /* NaN or inf was met */
};

/* ------------------------------------------------------------------ bits, noise, sums */

INLINE int32_t bits_of(float v) {
    int32_t b;
    memcpy(&b, &v, 4);
    return b;
}

INLINE float float_of(int32_t b) {
    float v;
    memcpy(&v, &b, 4);
    return v;
}

INLINE float load(const uint8_t *table, int64_t i) {
    float v;
    memcpy(&v, table + 4 * i, 4);
    return v;
}

INLINE void store(uint8_t *table, int64_t i, float v) { memcpy(table + 4 * i, &v, 4); }

INLINE uint32_t mix(uint32_t h) {
    h ^= h >> 16;
    h *= 0x7feb352dU;
    h ^= h >> 15;
    h *= 0x846ca68bU;
    h ^= h >> 16;
    return h;
}

INLINE uint32_t word(uint32_t i, uint32_t key0, uint32_t key1) { return mix(mix(i + key0) ^ key1); }

#define FOLD(h)                 \
    for (int i = 0; i < h; i++) \
        v[i] += v[i + h];

/* v[0] + ... + v[255] by halves: the first half plus the second, and again. */
INLINE double fold256(double *v) {
    FOLD(128) FOLD(64) FOLD(32) FOLD(16) FOLD(8) FOLD(4) FOLD(2) FOLD(1)
    return v[0];
}

/* The same of m <= 512 values, as if zeros followed; v has room for 512. */
INLINE double fold(double *v, int64_t m) {
    int64_t h = 1;
    while (h < m)
        h *= 2;
    for (int64_t i = m; i < h; i++)
        v[i] = 0;
    for (h /= 2; h; h /= 2)
        for (int64_t i = 0; i < h; i++)
            v[i] += v[i + h];
    return v[0];
}

/* Sum of TERM, a double, over the m values of a chunk; `value` is the value. */
#define CHUNK_SUM(result, TERM)                                   \
    do {                                                          \
        double v[CHUNK];                                          \
        if (m == CHUNK) {                                         \
            for (int i = 0; i < CHUNK / 2; i++) {                 \
                float value = x[i];                               \
                double first = (TERM);                            \
                value = x[i + CHUNK / 2];                         \
                v[i] = first + (TERM);                            \
            }                                                     \
            result = fold256(v);                                  \
        } else {                                                  \
            for (int64_t i = 0; i < m; i++) {                     \
                float value = x[i];                               \
                v[i] = (TERM);                                    \
            }                                                     \
            result = fold(v, m);                                  \
        }                                                         \
    } while (0)

INLINE int32_t max_bits(const float *x, int64_t m) {
    int32_t most = 0; /* as integers, |x| are in order, inf and NaN above all others */
    for (int64_t i = 0; i < m; i++) {
        int32_t b = bits_of(x[i]) & 0x7fffffff;
        most = b > most ? b : most;
    }
    return most;
}

/* Statistics of one chunk, m <= 512. See stats.py for what is where. Returns whether NaN or inf was met. */
INLINE int chunk_stat(const float *x, int64_t m, int stat, double s[3]) {
    if (stat == STAT_MAX || stat == STAT_CLIP || stat == STAT_RANGE) {
        int32_t most = max_bits(x, m);
        s[0] = float_of(most);
        if (most >= INF_BITS)
            return 1;
    }
    if (stat == STAT_L2) {
        CHUNK_SUM(s[0], (double)value * (double)value);
        return !(s[0] <= DBL_MAX);
    }
    if (stat == STAT_CLIP)
        CHUNK_SUM(s[1], (double)value * (double)value);
    if (stat == STAT_RANGE) {
        float lo = x[0], hi = x[0];
        for (int64_t i = 0; i < m; i++) {
            lo = x[i] < lo ? x[i] : lo;
            hi = x[i] > hi ? x[i] : hi;
        }
        s[0] = lo;
        s[1] = hi;
    }
    if (stat == STAT_MEAN) {
        CHUNK_SUM(s[0], (double)fabsf(value));
        return !(s[0] <= DBL_MAX);
    }
    if (stat == STAT_MEANS) {
        int32_t count = 0;
        for (int64_t i = 0; i < m; i++)
            count += x[i] >= 0;
        CHUNK_SUM(s[0], (double)(value >= 0 ? value : 0.0f));
        CHUNK_SUM(s[1], (double)(value >= 0 ? 0.0f : -value));
        s[2] = count;
        return !(s[0] + s[1] <= DBL_MAX);
    }
    return 0;
}

/* The same of a row of at most 512 chunks. */
INLINE int row_stat(const float *x, int64_t length, int stat, double s[3]) {
    if (length <= CHUNK)
        return chunk_stat(x, length, stat, s);
    double parts[3][CHUNK], part[3] = {0, 0, 0};
    int64_t chunks = (length + CHUNK - 1) / CHUNK;
    int bad = 0;
    for (int64_t c = 0; c < chunks; c++) {
        int64_t left = length - c * CHUNK;
        bad |= chunk_stat(x + c * CHUNK, left < CHUNK ? left : CHUNK, stat, part);
        for (int j = 0; j < 3; j++)
            parts[j][c] = part[j];
    }
    for (int j = 0; j < 3; j++) {
        int least = stat == STAT_RANGE && j == 0;
        if (stat == STAT_MAX || (stat == STAT_CLIP && j == 0) || stat == STAT_RANGE) {
            double most = parts[j][0];
            for (int64_t c = 1; c < chunks; c++)
                if (least ? parts[j][c] < most : parts[j][c] > most)
                    most = parts[j][c];
            s[j] = most;
        } else {
            s[j] = fold(parts[j], chunks);
        }
    }
    return bad;
}

/* Statistics of a row of `length` values -> its entries in the tables. */
INLINE void finish(const struct job *job, int stat, const double s[3], int64_t length, int64_t r, int64_t rows) {
    uint8_t *first = job->payload, *second = job->payload + 4 * rows;
    if (stat == STAT_MAX)
        store(first, r, (float)s[0]);
    if (stat == STAT_L2) {
        double norm = sqrt(s[0]);
        store(first, r, (float)(norm < FLT_MAX ? norm : FLT_MAX));
    }
    if (stat == STAT_CLIP) {
        double limit = sqrt(s[1] / (double)length) * job->clip;
        store(first, r, (float)(limit < s[0] ? limit : s[0]));
    }
    if (stat == STAT_RANGE) { /* + 0 makes 0 of -0 */
        store(first, r, (float)s[0] + 0.0f);
        store(second, r, (float)s[1] + 0.0f);
    }
    if (stat == STAT_MEAN)
        store(first, r, (float)(s[0] / (double)length));
    if (stat == STAT_MEANS) {
        double above = s[2], below = (double)length - s[2];
        store(first, r, (float)(s[0] / (above > 1 ? above : 1)));
        store(second, r, (float)((0.0 - s[1]) / (below > 1 ? below : 1)));
    }
}

/* ------------------------------------------------------------------ values <-> codes */

/* Two factors whose product is bound / scale, neither of which leaves float32. */
INLINE void factors(float scale, float bound, float *a, float *b) {
    *a = scale < 0x1p-64f ? 0x1p64f : scale > 0x1p64f ? 0x1p-64f : 1.0f;
    *b = scale == 0 ? 0.0f : bound / (scale * *a);
}

INLINE void to_codes(const struct job *job, int code, int nearest, const float *x, int32_t *codes, int m,
                     int64_t start, int64_t r, int64_t rows) {
    const uint32_t key0 = job->key0 + (uint32_t)start, key1 = job->key1;
    if (code == CODE_LEVELS || code == CODE_RANGE) {
        const float bound = job->bound, least = code == CODE_RANGE ? 0.0f : -bound;
        const int32_t shift = job->shift, offset = job->offset, down = 32 - shift;
        float a, b, origin = 0, scale = load(job->payload, r);
        if (code == CODE_RANGE) {
            origin = scale * 0.5f;
            scale = load(job->payload + 4 * rows, r) * 0.5f - origin;
        }
        factors(scale, bound, &a, &b);
        for (int i = 0; i < m; i++) {
            float v = code == CODE_RANGE ? x[i] * 0.5f - origin : x[i];
            v = v * a * b;
            v = v < least ? least : v;
            v = v > bound ? bound : v;
            int32_t noise = nearest ? 1 << (shift - 1) : (int32_t)(word((uint32_t)i, key0, key1) >> down);
            codes[i] = ((int32_t)v + offset + noise) >> shift;
        }
    } else if (code == CODE_SIGN) {
        for (int i = 0; i < m; i++)
            codes[i] = x[i] >= 0;
    } else {
        for (int i = 0; i < m; i++) {
            float v = x[i];
            v = v < -0x1p127f ? -0x1p127f : v;
            v = v > 0x1p127f ? 0x1p127f : v;
            uint32_t sum = (uint32_t)bits_of(v) + (word((uint32_t)i, key0, key1) & 0x7fffffU);
            codes[i] = (int32_t)(sum >> 23);
        }
    }
}

INLINE void put(float *out, int add, float alpha, float v) {
    if (add) /* v * 1 is v */
        *out = *out + v * alpha;
    else
        *out = v;
}

INLINE void from_codes(const struct job *job, int code, int add, const int32_t *codes, float *out, int m,
                       int64_t r, int64_t rows) {
    const float alpha = job->alpha;
    if (code == CODE_LEVELS) {
        const float step = job->step, norm = load(job->payload, r);
        const int32_t levels = job->offset >> job->shift;
        for (int i = 0; i < m; i++)
            put(out + i, add, alpha, (float)(codes[i] - levels) * step * norm);
    } else if (code == CODE_SIGN) {
        const float high = load(job->payload, r);
        const float low = job->tables == 2 ? load(job->payload + 4 * rows, r) : -high;
        for (int i = 0; i < m; i++)
            put(out + i, add, alpha, codes[i] ? high : low);
    } else if (code == CODE_RANGE) {
        const float step = job->step, origin = load(job->payload, r) * 0.5f;
        const float extent = load(job->payload + 4 * rows, r) * 0.5f - origin;
        for (int i = 0; i < m; i++) {
            float v = (float)codes[i] * step * extent + origin;
            v = v < -FLT_MAX / 2 ? -FLT_MAX / 2 : v;
            v = v > FLT_MAX / 2 ? FLT_MAX / 2 : v;
            put(out + i, add, alpha, v * 2.0f);
        }
    } else {
        for (int i = 0; i < m; i++)
            put(out + i, add, alpha, float_of((int32_t)((uint32_t)codes[i] << 23)));
    }
}

/* ------------------------------------------------------------------ codes <-> planes */

/* p bits per code, of the codes' bits from `shift` on; m = bytes of this chunk's part of the plane. */
INLINE void pack_plane(const int32_t *codes, uint8_t *plane, int p, int shift, int m) {
    const int32_t mask = (1 << p) - 1;
    for (int i = 0; i < m; i++) {
        int32_t byte = 0;
        for (int j = 0; j < 8 / p; j++)
            byte |= (codes[i + j * m] >> shift & mask) << (p * j);
        plane[i] = (uint8_t)byte;
    }
}

INLINE void unpack_plane(const uint8_t *plane, int32_t *codes, int p, int shift, int m, int first) {
    const int32_t mask = (1 << p) - 1;
    for (int j = 0; j < 8 / p; j++)
        for (int i = 0; i < m; i++) {
            int32_t field = (plane[i] >> (p * j) & mask) << shift;
            codes[i + j * m] = first ? field : codes[i + j * m] | field;
        }
}

INLINE int plane_bytes(int m, int p) { return (m * p + 7) / 8; }

/* The m codes of the chunk that starts at value `start`, all planes. codes has room for 512 + 8, zeros from m on. */
INLINE void pack_chunk(const int32_t *codes, int m, int64_t start, int64_t n, int width, uint8_t *planes) {
    int shift = 0;
    for (; width >= 8; width -= 8, shift += 8, planes += n) {
        for (int i = 0; i < m; i++)
            planes[start + i] = (uint8_t)(codes[i] >> shift);
    }
#define PLANE(p)                                                             \
    if (width & p) {                                                         \
        uint8_t *at = planes + start / 8 * p;                                \
        if (m == CHUNK)                                                      \
            pack_plane(codes, at, p, shift, CHUNK / 8 * p);                  \
        else                                                                 \
            pack_plane(codes, at, p, shift, plane_bytes(m, p));              \
        planes += (n * p + 7) / 8;                                           \
        shift += p;                                                          \
    }
    PLANE(4) PLANE(2) PLANE(1)
#undef PLANE
}

INLINE void unpack_chunk(int32_t *codes, int m, int64_t start, int64_t n, int width, const uint8_t *planes) {
    int shift = 0;
    for (; width >= 8; width -= 8, shift += 8, planes += n) {
        for (int i = 0; i < m; i++) {
            int32_t field = planes[start + i] << shift;
            codes[i] = shift == 0 ? field : codes[i] | field;
        }
    }
#define PLANE(p)                                                             \
    if (width & p) {                                                         \
        const uint8_t *at = planes + start / 8 * p;                          \
        if (m == CHUNK)                                                      \
            unpack_plane(at, codes, p, shift, CHUNK / 8 * p, shift == 0);    \
        else                                                                 \
            unpack_plane(at, codes, p, shift, plane_bytes(m, p), shift == 0); \
        planes += (n * p + 7) / 8;                                           \
        shift += p;                                                          \
    }
    PLANE(4) PLANE(2) PLANE(1)
#undef PLANE
}

/* ------------------------------------------------------------------ tiles */

INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/* Tables, then codes, of the values from `from` to `to`. A tile starts with a row and with a chunk. */
INLINE int encode_range(const struct job *job, int stat, int code, int nearest, int width, int64_t from,
                        int64_t to) {
    const int64_t n = job->n, block = job->block, rows = (n + block - 1) / block;
    int bad = 0;
    if (job->do_tables && stat != STAT_NONE)
        for (int64_t at = from; at < to; at += block) {
            double s[3] = {0, 0, 0};
            int64_t length = smaller(block, n - at);
            bad |= row_stat(job->x + at, length, stat, s);
            finish(job, stat, s, length, at / block, rows);
        }
    if (!job->do_codes || bad)
        return bad;
    uint8_t *planes = job->payload + 4 * rows * job->tables;
    for (int64_t start = from; start < to; start += CHUNK) {
        int32_t codes[CHUNK + 8];
        int64_t end = smaller(start + CHUNK, to);
        if (code == CODE_NATURAL)
            bad |= max_bits(job->x + start, end - start) >= INF_BITS;
        if (code == CODE_NATURAL || code == CODE_SIGN) {
            to_codes(job, code, nearest, job->x + start, codes, (int)(end - start), start, 0, rows);
        } else {
            for (int64_t at = start, r = start / block; at < end; r++) {
                int64_t stop = smaller(end, (r + 1) * block);
                to_codes(job, code, nearest, job->x + at, codes + (at - start), (int)(stop - at), at, r, rows);
                at = stop;
            }
        }
        if (end - start < CHUNK)
            memset(codes + (end - start), 0, sizeof(int32_t) * (size_t)(CHUNK + 8 - (end - start)));
        pack_chunk(codes, (int)(end - start), start, n, width, planes);
    }
    return bad;
}

INLINE void decode_range(const struct job *job, int code, int add, int width, int64_t from, int64_t to) {
    const int64_t n = job->n, block = job->block, rows = (n + block - 1) / block;
    const uint8_t *planes = job->payload + 4 * rows * job->tables;
    for (int64_t start = from; start < to; start += CHUNK) {
        int32_t codes[CHUNK + 8];
        int64_t end = smaller(start + CHUNK, to);
        unpack_chunk(codes, (int)(end - start), start, n, width, planes);
        for (int64_t at = start, r = start / block; at < end; r++) {
            int64_t stop = smaller(end, (r + 1) * block);
            from_codes(job, code, add, codes + (at - start), job->out + at, (int)(stop - at), r, rows);
            at = stop;
        }
    }
}

/* The common cases are compiled by themselves, so that their loops know the width and the rule. */
DISPATCHED static int encode_tile(struct job *job, int64_t tile) {
    int64_t from = tile * job->tile, to = smaller(from + job->tile, job->n);
    const int stat = job->stat, code = job->code, width = job->width, nearest = job->nearest;
    if (code == CODE_LEVELS && stat == STAT_MAX && width == 8)
        return encode_range(job, STAT_MAX, CODE_LEVELS, 0, 8, from, to);
    if (code == CODE_LEVELS && stat == STAT_MAX && width == 4)
        return encode_range(job, STAT_MAX, CODE_LEVELS, 0, 4, from, to);
    if (code == CODE_LEVELS)
        return encode_range(job, stat, CODE_LEVELS, 0, width, from, to);
    if (code == CODE_RANGE)
        return encode_range(job, STAT_RANGE, CODE_RANGE, nearest, 8, from, to);
    if (code == CODE_NATURAL)
        return encode_range(job, STAT_NONE, CODE_NATURAL, 0, 9, from, to);
    if (stat == STAT_MEAN)
        return encode_range(job, STAT_MEAN, CODE_SIGN, 0, 1, from, to);
    return encode_range(job, STAT_MEANS, CODE_SIGN, 0, 1, from, to);
}

#define DECODE(rule, bits)                                     \
    do {                                                       \
        if (job->add)                                          \
            decode_range(job, rule, 1, bits, from, to);        \
        else                                                   \
            decode_range(job, rule, 0, bits, from, to);        \
        return 0;                                              \
    } while (0)

DISPATCHED static int decode_tile(struct job *job, int64_t tile) {
    int64_t from = tile * job->tile, to = smaller(from + job->tile, job->n);
    const int code = job->code, width = job->width;
    if (code == CODE_LEVELS && width == 8)
        DECODE(CODE_LEVELS, 8);
    if (code == CODE_LEVELS && width == 4)
        DECODE(CODE_LEVELS, 4);
    if (code == CODE_LEVELS)
        DECODE(CODE_LEVELS, width);
    if (code == CODE_SIGN)
        DECODE(CODE_SIGN, 1);
    if (code == CODE_RANGE)
        DECODE(CODE_RANGE, 8);
    DECODE(CODE_NATURAL, 9);
}

/* Grid: each row has a width of its own, and rows of one width are packed together. A row is whole chunks.
 * Tables: least q of each row, int32; then its width, uint8. Tiles are whole rows. */
#define GRID_RAW 32

/* q of the values from `at` on, all 512; those beyond the vector's end are copies of its last. */
INLINE void grid_chunk(const struct job *job, int64_t at, float *q) {
    const float inverse = job->bound;
    const uint32_t key0 = job->key0 + (uint32_t)at, key1 = job->key1;
    float filled[CHUNK];
    const float *x = job->x + at;
    if (at + CHUNK > job->n) {
        for (int64_t i = 0; i < CHUNK; i++)
            filled[i] = job->x[smaller(at + i, job->n - 1)];
        x = filled;
    }
    for (int i = 0; i < CHUNK; i++) {
        float noise = (float)(int32_t)word((uint32_t)i, key0, key1) * 0x1p-32f;
        q[i] = rintf(x[i] * inverse + noise);
    }
}

DISPATCHED static int grid_widths_tile(struct job *job, int64_t tile) {
    const int64_t n = job->n, block = job->block, rows = (n + block - 1) / block;
    int64_t from = tile * job->tile, to = smaller(from + job->tile, n);
    int bad = 0;
    for (int64_t start = from; start < to; start += block) {
        float q[CHUNK], least = FLT_MAX, most = -FLT_MAX;
        int raw = 0;
        for (int64_t at = start; at < start + block; at += CHUNK) {
            grid_chunk(job, at, q);
            for (int i = 0; i < CHUNK; i++) {
                least = q[i] < least ? q[i] : least;
                most = q[i] > most ? q[i] : most;
            }
        }
        bad |= max_bits(job->x + start, smaller(block, n - start)) >= INF_BITS;
        raw = !(most < 32768.0f && least > -32768.0f);
        int32_t low = raw ? 0 : (int32_t)least, range = raw ? 0 : (int32_t)most - low, width = 0;
        while (range >> width)
            width++;
        memcpy(job->payload + start / block * 4, &low, 4);
        job->payload[4 * rows + start / block] = (uint8_t)(raw ? GRID_RAW : width);
    }
    return bad;
}

DISPATCHED static int grid_encode_tile(struct job *job, int64_t tile) {
    const int64_t n = job->n, block = job->block, rows = (n + block - 1) / block;
    int64_t from = tile * job->tile, to = smaller(from + job->tile, n);
    for (int64_t start = from; start < to; start += block) {
        const int64_t r = start / block;
        const int width = job->payload[4 * rows + r];
        uint8_t *group = job->payload + job->groups[2 * width];
        int32_t least;
        memcpy(&least, job->payload + 4 * r, 4);
        for (int64_t at = start; at < start + block; at += CHUNK) {
            int64_t place = job->places[r] * block + (at - start);
            if (width == GRID_RAW) {
                for (int64_t i = 0; i < CHUNK; i++)
                    store(group, place + i, job->x[smaller(at + i, n - 1)]);
            } else if (width) {
                float q[CHUNK];
                int32_t codes[CHUNK + 8];
                grid_chunk(job, at, q);
                for (int i = 0; i < CHUNK; i++)
                    codes[i] = (int32_t)q[i] - least;
                pack_chunk(codes, CHUNK, place, job->groups[2 * width + 1], width, group);
            }
        }
    }
    return 0;
}

DISPATCHED static int grid_decode_tile(struct job *job, int64_t tile) {
    const int64_t n = job->n, block = job->block, rows = (n + block - 1) / block;
    int64_t from = tile * job->tile, to = smaller(from + job->tile, n);
    for (int64_t start = from; start < to; start += block) {
        const int64_t r = start / block;
        const int width = job->payload[4 * rows + r];
        const uint8_t *group = job->payload + job->groups[2 * width];
        int32_t least;
        memcpy(&least, job->payload + 4 * r, 4);
        for (int64_t at = start; at < smaller(start + block, n); at += CHUNK) {
            const int64_t place = job->places[r] * block + (at - start), m = smaller(CHUNK, n - at);
            int32_t codes[CHUNK + 8];
            float v[CHUNK];
            if (width == GRID_RAW) {
                memcpy(v, group + 4 * place, sizeof v);
            } else {
                if (width)
                    unpack_chunk(codes, CHUNK, place, job->groups[2 * width + 1], width, group);
                else
                    memset(codes, 0, sizeof codes);
                for (int i = 0; i < CHUNK; i++)
                    v[i] = (float)(int32_t)((uint32_t)codes[i] + (uint32_t)least) * job->step;
            }
            if (job->add)
                for (int64_t i = 0; i < m; i++)
                    put(job->out + at + i, 1, job->alpha, v[i]);
            else
                memcpy(job->out + at, v, 4 * (size_t)m);
        }
    }
    return 0;
}

/* stats[chunk, 3] of one long row: tiles are cut at chunks. */
DISPATCHED static int stats_tile(struct job *job, int64_t tile) {
    int64_t from = tile * job->tile, to = smaller(from + job->tile, job->n);
    int bad = 0;
    for (int64_t at = from; at < to; at += CHUNK) {
        double *s = job->stats + at / CHUNK * 3;
        bad |= chunk_stat(job->x + at, smaller(CHUNK, to - at), job->stat, s);
    }
    return bad;
}

/* Where |x| is at least so large, NaN too, and x there. Those of a tile lie at its own start until all are done. */
DISPATCHED static int select_tile(struct job *job, int64_t tile) {
    int64_t from = tile * job->tile, to = smaller(from + job->tile, job->n), found = 0;
    const int32_t least = job->least;
    int32_t *index = job->index + from;
    float *value = job->out + from;
    for (int64_t at = from; at < to; at += 64) {
        const float *x = job->x + at;
        int m = (int)smaller(64, to - at);
        int32_t most = 0;
        if (m == 64) /* a loop of fixed length */
            most = max_bits(x, 64);
        if (m == 64 && most < least)
            continue;
        for (int i = 0; i < m; i++) {
            index[found] = (int32_t)(at + i);
            value[found] = x[i];
            found += (bits_of(x[i]) & 0x7fffffff) >= least;
        }
    }
    job->counts[tile] = found;
    return 0;
}

/* out[i] = word i + offset of the key's noise; tiles of `tile` words. */
DISPATCHED static int noise_tile(struct job *job, int64_t tile) {
    int64_t from = tile * job->tile, to = smaller(from + job->tile, job->n);
    const uint32_t key0 = job->key0 + (uint32_t)from, key1 = job->key1;
    int32_t *out = job->index + from;
    for (int64_t i = 0; i < to - from; i++)
        out[i] = (int32_t)word((uint32_t)i, key0, key1);
    return 0;
}

/* ------------------------------------------------------------------ threads */

struct work {
    struct job *job;
    int (*tile)(struct job *, int64_t);
};

static void *worker(void *argument) {
    struct work *work = argument;
    struct job *job = work->job;
    const int64_t tiles = (job->n + job->tile - 1) / job->tile;
    for (;;) {
#ifdef _WIN32
        int64_t tile = job->next++;
#else
        int64_t tile = __atomic_fetch_add(&job->next, 1, __ATOMIC_RELAXED);
#endif
        if (tile >= tiles)
            return NULL;
        if (work->tile(job, tile)) {
#ifdef _WIN32
            job->bad = 1;
#else
            __atomic_store_n(&job->bad, 1, __ATOMIC_RELAXED);
#endif
        }
    }
}

/* All tiles, by this thread and job->threads - 1 others, which live as long as the call: nothing survives to
 * be lost in a fork. Tiles are handed out as threads get free, which does not change any byte. */
static void run(struct job *job, int (*tile)(struct job *, int64_t)) {
    struct work work = {job, tile};
    job->next = 0;
    job->bad = 0;
#ifndef _WIN32
    pthread_t helpers[MAX_THREADS];
    int started = 0;
    while (started + 1 < job->threads && started < MAX_THREADS &&
           pthread_create(&helpers[started], NULL, worker, &work) == 0)
        started++;
#endif
    worker(&work);
#ifndef _WIN32
    while (started)
        pthread_join(helpers[--started], NULL);
#endif
}

EXPORT int gossip_abi(void) { return ABI; }
EXPORT int gossip_job_bytes(void) { return (int)sizeof(struct job); }
EXPORT void gossip_encode(struct job *job) { run(job, encode_tile); }
EXPORT void gossip_decode(struct job *job) { run(job, decode_tile); }
EXPORT void gossip_stats(struct job *job) { run(job, stats_tile); }

/* Leaves places, ascending, and values at the start of job->index and job->out, and returns how many they are. */
EXPORT int64_t gossip_select(struct job *job) {
    int64_t found = 0;
    run(job, select_tile);
    for (int64_t tile = 0; tile * job->tile < job->n; found += job->counts[tile++]) {
        memmove(job->index + found, job->index + tile * job->tile, 4 * (size_t)job->counts[tile]);
        memmove(job->out + found, job->out + tile * job->tile, 4 * (size_t)job->counts[tile]);
    }
    return found;
}

EXPORT void gossip_grid_widths(struct job *job) { run(job, grid_widths_tile); }
EXPORT void gossip_grid_encode(struct job *job) { run(job, grid_encode_tile); }
EXPORT void gossip_grid_decode(struct job *job) { run(job, grid_decode_tile); }
EXPORT void gossip_noise(struct job *job) { run(job, noise_tile); }
