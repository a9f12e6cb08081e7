/* What a decode step does between its matrix products, one call for what would be a dozen small ones.
 *
 * After each product the caches hold weights, so every small operation runs from cold code and memory.
 * Sums run in an order that depends on nothing but the row: its bits are the same in any company. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LANES 16
typedef float vec __attribute__((vector_size(4 * LANES), aligned(4)));
typedef float half_vec __attribute__((vector_size(2 * LANES), aligned(4)));
typedef float quarter_vec __attribute__((vector_size(LANES), aligned(4)));
typedef int int_vec __attribute__((vector_size(4 * LANES), aligned(4)));
#define INLINE static inline __attribute__((always_inline))

INLINE vec choose(int_vec mask, vec yes, vec no)
{
    return (vec)(((int_vec)yes & mask) | ((int_vec)no & ~mask));
}

INLINE float total(vec x)
{
    const half_vec *halves = (const half_vec *)&x;
    const half_vec half = halves[0] + halves[1];
    const quarter_vec *quarters = (const quarter_vec *)&half;
    const quarter_vec quarter = quarters[0] + quarters[1];
    return (quarter[0] + quarter[2]) + (quarter[1] + quarter[3]);
}

/* e^x to two units in the last place, for x <= 0; 0 below the range of float. */
INLINE vec exponential(vec x)
{
    const int_vec vanishes = x < -87.0f;
    x = choose(vanishes, (vec){0}, x);
    const vec shift = (vec){0} + 12582912.0f; /* adding it rounds to an integer in the low bits */
    const vec shifted = x * 1.44269504f + shift;
    const vec power = shifted - shift;
    const vec rest = (x - power * 0.693359375f) + power * 2.12194440e-4f;
    vec sum = (vec){0} + 1.9875691500e-4f;
    sum = sum * rest + 1.3981999507e-3f;
    sum = sum * rest + 8.3334519073e-3f;
    sum = sum * rest + 4.1665795894e-2f;
    sum = sum * rest + 1.6666665459e-1f;
    sum = sum * rest + 5.0000001201e-1f;
    sum = sum * rest * rest + rest + 1.0f;
    const int_vec scale = ((int_vec)shifted - (int_vec)shift + 127) << 23;
    return choose(vanishes, (vec){0}, sum * (vec)scale);
}

/* y = x / rms(x) * weight, row by row; width is a multiple of LANES. */
void rms_norm(const float *x, const float *weight, float *y, long rows, long width, float eps)
{
    for (long row = 0; row < rows; row++, x += width, y += width) {
        vec squares = {0};
        for (long at = 0; at < width; at += LANES)
            squares += *(const vec *)(x + at) * *(const vec *)(x + at);
        const float factor = 1.0f / sqrtf(total(squares) / (float)width + eps);
        for (long at = 0; at < width; at += LANES)
            *(vec *)(y + at) = *(const vec *)(x + at) * factor * *(const vec *)(weight + at);
    }
}

/* y = silu(gate) * up for rows [gate, up] of 2 * inner; inner is a multiple of LANES. */
void silu_multiply(const float *gate_up, float *y, long rows, long inner)
{
    for (long row = 0; row < rows; row++, gate_up += 2 * inner, y += inner)
        for (long at = 0; at < inner; at += LANES) {
            const vec gate = *(const vec *)(gate_up + at);
            const vec e = exponential(choose(gate < 0.0f, gate, -gate)); /* e^-|gate| */
            const vec sigmoid = choose(gate < 0.0f, e, (vec){0} + 1.0f) / (1.0f + e);
            *(vec *)(y + at) = gate * sigmoid * *(const vec *)(gate_up + inner + at);
        }
}

INLINE float product(const float *a, const float *b, long width)
{
    vec sum = {0};
    for (long at = 0; at < width; at += LANES)
        sum += *(const vec *)(a + at) * *(const vec *)(b + at);
    return total(sum);
}

/* One query head over the keys at `places`; `scores` has room for a multiple of LANES. */
INLINE void attend(const float *query, const float *keys, const float *values, const long *new_places,
                   long committed, long count, float *scores, float *out, long width)
{
    const float scale = 1.0f / sqrtf((float)width);
    float highest = -INFINITY;
    for (long key = 0; key < count; key++) {
        const long place = key < committed ? key : new_places[key - committed];
        scores[key] = product(query, keys + place * width, width) * scale;
        highest = scores[key] > highest ? scores[key] : highest;
    }
    for (long key = count; key % LANES; key++)
        scores[key] = -INFINITY;
    vec sum = {0};
    for (long key = 0; key < count; key += LANES)
        sum += *(vec *)(scores + key) = exponential(*(vec *)(scores + key) - highest);
    const float norm = 1.0f / total(sum);
    for (long at = 0; at < width; at += LANES)
        *(vec *)(out + at) = (vec){0};
    for (long key = 0; key < count; key++) {
        const long place = key < committed ? key : new_places[key - committed];
        for (long at = 0; at < width; at += LANES)
            *(vec *)(out + at) += scores[key] * *(const vec *)(values + place * width + at);
    }
    for (long at = 0; at < width; at += LANES)
        *(vec *)(out + at) *= norm;
}

/* Append the keys and values of `queries` new tokens to each row, and let them attend to what they see.
 *
 * query [rows * queries][heads][width] and key, value [rows * queries][groups][width], their tokens so many
 * floats apart; cached keys and values [rows][groups][positions][width]; width is a multiple of LANES. A new token sees
 * the row's `lengths` committed positions and, of the new ones, itself and those before it, or those that
 * seen [rows][queries][queries] marks. */
void attend_step(const float *query, const float *key, const float *value, long query_stride,
                 long value_stride, float *keys, float *values, long row_stride, long group_stride, const long *lengths,
                 const unsigned char *seen, float *out, long rows, long queries, long heads, long groups,
                 long width, int threads)
{
    const long group = heads / groups;
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (long pair = 0; pair < rows * groups; pair++) {
        const long row = pair / groups, g = pair % groups, committed = lengths[row];
        float *row_keys = keys + row * row_stride + g * group_stride;
        float *row_values = values + row * row_stride + g * group_stride;
        for (long q = 0; q < queries; q++) {
            const long token = row * queries + q, place = (committed + q) * width;
            memcpy(row_keys + place, key + token * query_stride + g * width, width * sizeof(float));
            memcpy(row_values + place, value + token * value_stride + g * width, width * sizeof(float));
        }
        long *places = malloc(queries * sizeof(long));
        float *scores = malloc((committed + queries + LANES) * sizeof(float));
        for (long q = 0; q < queries; q++) {
            const long token = row * queries + q;
            long count = committed;
            for (long other = 0; other < queries; other++)
                if (seen ? seen[token * queries + other] : other <= q)
                    places[count++ - committed] = committed + other;
            for (long head = g * group; head < (g + 1) * group; head++) {
                const float *at = query + token * query_stride + head * width;
                float *to = out + (token * heads + head) * width;
                if (width == 64)
                    attend(at, row_keys, row_values, places, committed, count, scores, to, 64);
                else if (width == 128)
                    attend(at, row_keys, row_values, places, committed, count, scores, to, 128);
                else
                    attend(at, row_keys, row_values, places, committed, count, scores, to, width);
            }
        }
        free(places);
        free(scores);
    }
}
