/* y = x W^T for few rows x and a weight W that streams from memory.
 *
 * The weight lies in panels of PANEL outputs, input after input: [outputs / PANEL][inputs][PANEL]. A panel is
 * read once from memory, and again from the cache for every further ROWS rows. Without the prefetch a core
 * waits for memory while it could multiply: six rows then cost 1.6 times one row instead of 1.15 times.
 *
 * Every output is one sum in the order of the inputs, so a row has the same bits beside any other rows.
 */
#define LANES 16
#define PANEL (2 * LANES)
#ifdef __AVX512F__
#define ROWS 12        /* with two sums each, all that the vector registers hold */
#else
#define ROWS 3
#endif
#define AHEAD 2048     /* floats; into the second-level cache, whose queue is longer */

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4)));

static inline __attribute__((always_inline)) void multiply(
    int rows, const float *x, const float *panel, float *y, long inputs, long outputs, int width)
{
    vec sum[ROWS][2];
    for (int row = 0; row < rows; row++)
        sum[row][0] = sum[row][1] = (vec){0};
    for (long input = 0; input < inputs; input++) {
        const vec *weights = (const vec *)(panel + input * PANEL);
        __builtin_prefetch(panel + input * PANEL + AHEAD, 0, 2);
        __builtin_prefetch(panel + input * PANEL + AHEAD + LANES, 0, 2);
        const vec left = weights[0], right = weights[1];
#pragma GCC unroll 12
        for (int row = 0; row < rows; row++) {
            const float value = x[row * inputs + input];
            sum[row][0] += left * value;
            sum[row][1] += right * value;
        }
    }
#pragma GCC unroll 12
    for (int row = 0; row < rows; row++) {
        if (width == PANEL) {
            ((vec *)(y + row * outputs))[0] = sum[row][0];
            ((vec *)(y + row * outputs))[1] = sum[row][1];
        } else
            for (int output = 0; output < width; output++)
                y[row * outputs + output] = sum[row][output / LANES][output % LANES];
    }
}

/* x [rows][inputs] and y [rows][outputs], dense. */
void multiply_panels(
    const float *x, const float *panels, float *y, long rows, long inputs, long outputs, int threads)
{
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (long first = 0; first < outputs; first += PANEL) {
        const float *panel = panels + first * inputs;
        const int width = outputs - first < PANEL ? (int)(outputs - first) : PANEL;
        for (long row = 0; row < rows; row += ROWS) {
            const float *x_rows = x + row * inputs;
            float *y_rows = y + row * outputs + first;
#define WITH(count) case count: multiply(count, x_rows, panel, y_rows, inputs, outputs, width); break;
            switch (rows - row < ROWS ? (int)(rows - row) : ROWS) {
                WITH(1) WITH(2) WITH(3)
#if ROWS == 12
                WITH(4) WITH(5) WITH(6) WITH(7) WITH(8) WITH(9) WITH(10) WITH(11) WITH(12)
#endif
            }
        }
    }
}
