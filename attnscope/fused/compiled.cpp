// Sweeps over float32 numbers, for torch's stable interface: the weights of a tile with the sums of its rows
// (``weigh_tile`` in weigh.py, six operations of torch) and what figures need of rows (``key_sums`` in
// measurement.py, some twenty). Plain arithmetic on vectors, so that no flag of the compiler may change how the
// rest of the process counts (-ffast-math would round denormals to 0 everywhere).
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <cstring>
#include <vector>

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

static inline float largest_of(Lanes lanes) {
    float top = lanes[0];
    for (int lane = 1; lane < WIDTH; lane++) top = lanes[lane] > top ? lanes[lane] : top;
    return top;
}

static inline float largest(const float* score, int64_t keys) {
    int64_t key = 0;
    Lanes most = Lanes{} - __builtin_inff();
    for (; key + WIDTH <= keys; key += WIDTH) {
        const Lanes here = load(score + key);
        most = here > most ? here : most;
    }
    float top = largest_of(most);
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

// The natural logarithm within 1e-7 of itself: an exponent, and a polynomial of what is left, in [√½, √2) - 1.
// Of 0, a denormal, infinity or what is no number it is any finite number: it is multiplied by them.
static inline Lanes logarithm(Lanes x) {
    const Whole half = Whole{} + 0x3f3504f3;  // √½
    const Whole exponent = ((Whole)x - half) >> 23;
    const Lanes rest = (Lanes)((Whole)x - (exponent << 23)) - 1.0f;
    Lanes power = Lanes{} + 0.087004302f;
    for (float factor : {-0.14267482f, 0.14914768f, -0.16577585f, 0.19963064f, -0.25001337f, 0.33333911f, -0.5f})
        power = power * rest + factor;
    return __builtin_convertvector(exponent, Lanes) * 0.69314718f + (power * rest * rest + rest);
}

typedef float Quarter __attribute__((vector_size(16)));

// All lanes added, four by four: one after another would wait for each.
static inline float total_of(Lanes lanes) {
    Quarter parts[WIDTH / 4], sums{};
    std::memcpy(parts, &lanes, sizeof lanes);
    for (const Quarter& part : parts) sums += part;
    return (sums[0] + sums[2]) + (sums[1] + sums[3]);
}

// Of each row of ``weights`` [batch, head, row, key]: entropy, largest weight and total; and into ``sums``
// [sum, batch, head, row] the sums weighted by ``factors`` [batch or 1, row, sum, key], which zeros fill up to
// whole vectors, then the weights at ``places`` [place, row], 0 at -1.
void sum_rows(const Tensor& weights, const Tensor& factors, const Tensor& places, const Tensor& sums,
              const Tensor& entropy, const Tensor& largest, const Tensor& total) {
    const int64_t texts = weights.size(0), heads = weights.size(1), rows = weights.size(2), keys = weights.size(3);
    const int64_t count = factors.size(2), wide = factors.size(3), spots = places.size(0), each = texts * heads * rows;
    const float* factor = static_cast<const float*>(factors.const_data_ptr());
    const int64_t* place = static_cast<const int64_t*>(places.const_data_ptr());
    float* sum = static_cast<float*>(sums.mutable_data_ptr());
    float* spread = static_cast<float*>(entropy.mutable_data_ptr());
    float* most = static_cast<float*>(largest.mutable_data_ptr());
    float* whole = static_cast<float*>(total.mutable_data_ptr());
    std::vector<float> padded(wide);
    float* weight = padded.data();
    for (int64_t text = 0; text < texts; text++)
        for (int64_t row = 0; row < rows; row++)
            for (int64_t head = 0; head < heads; head++) {
                const float* own = factor + ((factors.size(0) > 1 ? text : 0) * rows + row) * count * wide;
                const int64_t at = (text * heads + head) * rows + row;
                std::memcpy(weight, static_cast<const float*>(weights.const_data_ptr()) + text * weights.stride(0) +
                                        head * weights.stride(1) + row * weights.stride(2), sizeof(float) * keys);
                Lanes all{}, logs{}, top{};
                for (int64_t key = 0; key < wide; key += WIDTH) {
                    const Lanes here = load(weight + key);
                    all += here;
                    logs -= here * logarithm(here);
                    top = here > top ? here : top;
                }
                whole[at] = total_of(all);
                spread[at] = total_of(logs);
                most[at] = whole[at] == whole[at] ? largest_of(top) : whole[at];
                for (int64_t name = 0; name < count; name++, own += wide) {
                    Lanes weighed{};
                    for (int64_t key = 0; key < wide; key += WIDTH) weighed += load(weight + key) * load(own + key);
                    sum[name * each + at] = total_of(weighed);
                }
                for (int64_t spot = 0; spot < spots; spot++) {
                    const int64_t key = place[spot * rows + row];
                    sum[(count + spot) * each + at] = key < 0 ? 0 : weight[key];
                }
            }
}

STABLE_TORCH_LIBRARY(attnscope, library) {
    library.def(
        "weigh_tile(Tensor scores, Tensor(a!) weights, Tensor(b!) highest, Tensor(c!) mass, Tensor(d!) moment, "
        "float lowest) -> ()");
    library.def(
        "sum_rows(Tensor weights, Tensor factors, Tensor places, Tensor(a!) sums, Tensor(b!) entropy, "
        "Tensor(c!) largest, Tensor(d!) total) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(attnscope, CPU, library) {
    library.impl("weigh_tile", TORCH_BOX(&weigh_tile));
    library.impl("sum_rows", TORCH_BOX(&sum_rows));
}
