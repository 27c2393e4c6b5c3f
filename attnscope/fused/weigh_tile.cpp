// The weights of a tile and the sums of its rows in one sweep, for torch's stable interface: what
// ``weigh_tile`` in weigh.py does in six. Plain arithmetic on vectors, so that no flag of the
// compiler may change how the rest of the process counts (-ffast-math would round denormals to 0 everywhere).
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <cstring>

using torch::stable::Tensor;

#if defined(__AVX512F__)
constexpr int64_t WIDTH = 16;
#elif defined(__AVX__)
constexpr int64_t WIDTH = 8;
#else
constexpr int64_t WIDTH = 4;
#endif
typedef float Lanes __attribute__((vector_size(4 * WIDTH)));
typedef int32_t Whole __attribute__((vector_size(4 * WIDTH)));

// As many numbers as a vector has, or the last of a row: what lies behind its end weighs nothing.
static inline Lanes load(const float* from, int64_t count = WIDTH) {
    Lanes numbers = Lanes{} - __builtin_inff();
    std::memcpy(&numbers, from, sizeof(float) * count);
    return numbers;
}

// 2^x of numbers from -126 to 0 within 2e-7: x is a whole number and a rest in [-.5, .5], whose power is a
// polynomial. A number that is not one stays so.
static inline Lanes power_of_two(Lanes x) {
    const Lanes shift = Lanes{} + 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number
    const Lanes shifted = x + shift, rest = x - (shifted - shift);
    Lanes power = Lanes{} + 1.5353362e-4f;
    for (float factor : {1.3398874e-3f, 9.6184370e-3f, 5.5503324e-2f, 2.4022648e-1f, 6.9314720e-1f, 1.0f})
        power = power * rest + factor;
    const Whole exponent = (Whole)shifted - (Whole)shift;
    return power * (Lanes)((exponent + 127) << 23);
}

static inline float largest(const float* score, int64_t keys) {
    int64_t key = 0;
    Lanes most = Lanes{} - __builtin_inff();
    for (; key + WIDTH <= keys; key += WIDTH) {
        const Lanes here = load(score + key);
        most = here > most ? here : most;
    }
    float top = most[0];
    for (int lane = 1; lane < WIDTH; lane++) top = most[lane] > top ? most[lane] : top;
    for (; key < keys; key++) top = score[key] > top ? score[key] : top;
    return top;
}

void weigh_tile(const Tensor& scores, const Tensor& weights, const Tensor& highest, const Tensor& mass,
                const Tensor& moment, double least) {
    const int64_t rows = scores.size(0), keys = scores.size(1);
    const float* score = static_cast<const float*>(scores.const_data_ptr());
    float* weight = static_cast<float*>(weights.mutable_data_ptr());
    float* top = static_cast<float*>(highest.mutable_data_ptr());
    float* sum = static_cast<float*>(mass.mutable_data_ptr());
    float* mean = static_cast<float*>(moment.mutable_data_ptr());
    const Lanes lowest = Lanes{} + static_cast<float>(least);
    for (int64_t row = 0; row < rows; row++, score += keys, weight += keys) {
        top[row] = largest(score, keys);
        Lanes sums{}, means{};
        const auto weigh = [&](Lanes below) {
            const Lanes bounded = below < lowest ? lowest : below;
            const Lanes here = below < lowest ? Lanes{} : power_of_two(bounded);
            sums += here;
            means += here * bounded;
            return here;
        };
        int64_t key = 0;
        for (; key + WIDTH <= keys; key += WIDTH) {
            const Lanes here = weigh(load(score + key) - top[row]);
            std::memcpy(weight + key, &here, sizeof here);
        }
        if (key < keys) {
            const Lanes here = weigh(load(score + key, keys - key) - top[row]);
            std::memcpy(weight + key, &here, sizeof(float) * (keys - key));
        }
        sum[row] = mean[row] = 0;
        for (int lane = 0; lane < WIDTH; lane++) sum[row] += sums[lane], mean[row] += means[lane];
    }
}

STABLE_TORCH_LIBRARY(attnscope, library) {
    library.def(
        "weigh_tile(Tensor scores, Tensor(a!) weights, Tensor(b!) highest, Tensor(c!) mass, Tensor(d!) moment, "
        "float lowest) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(attnscope, CPU, library) { library.impl("weigh_tile", TORCH_BOX(&weigh_tile)); }
