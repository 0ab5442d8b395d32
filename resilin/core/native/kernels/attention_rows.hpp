// The part of attention between its matrix products: scale, mask and softmax of rows of scores, and the gradient.
#pragma once
#include <cstdint>

namespace resilin {

// The scores of one head: T queries, a row each, over S keys.
struct Scores {
    int64_t T, S;
    bool causal; // query t sees keys 0..t
    float scale;
    const float *mask = nullptr; // what is added to the first row; null: nothing
    int64_t mask_row = 0;        // elements from one row of the mask to the next
};

// Rows [begin, end) of `s`, in place: softmax(scale * s + mask) over the keys that the query sees, 0 for the others.
void softmax_rows(float *s, const Scores &of, int64_t begin, int64_t end);

// Rows [begin, end) of `d`, in place, from the gradient of their probabilities `p` to that of their scores; 0 for keys
// that the query does not see.
void softmax_backward_rows(float *d, const float *p, const Scores &of, int64_t begin, int64_t end);

} // namespace resilin
