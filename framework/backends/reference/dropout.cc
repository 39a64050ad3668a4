// Dropout: element i of the logical tensor, i = ((n * C + c) * H + h) * W + w, n the example that a
// row stands for, is kept if
// random_uniform(random_key(seed, key, step), i) >= rate, and then divided by 1 - rate.
#include <limits>

#include "framework/backends/reference/access.h"
#include "framework/backends/reference/kernels.h"
#include "framework/backends/reference/require.h"
#include "framework/base/random.h"
#include "framework/plan/rows.h"

namespace convnet::reference {

template <typename T>
KernelResult dropout(const Binding& binding) {
  Require require(binding);
  if (!require.ok()) return require.status();
  const View& in = binding.in[0];
  const View& out = binding.out[0];
  require.activation(in, "x", DTypeOf<T>::value);
  require.activation(out, "y", DTypeOf<T>::value);
  require.same_shape(out, "y", in, "x");
  require.covers(in, "x", out);
  const double rate = require.real("rate");
  require.that(rate >= 0 && rate < 1, "attribute 'rate' is not in [0, 1)");
  const auto purpose =
      static_cast<uint64_t>(require.integer("key", std::numeric_limits<int64_t>::min()));
  const bool sub_batch = binding.instr.attrs.has("rows");
  const std::vector<int64_t> rows = sub_batch ? require.list("rows") : std::vector<int64_t>();
  require.that(rows == in.rows && rows == out.rows, "attribute 'rows' is not that of the tensors");
  if (!require.ok()) return require.status();
  return loop_kernel([rate, purpose, map = RowMap(rows), shape = out.shape, &state = binding.state,
                      x = Access<T>(in), y = Access<T>(out)] {
    const auto key = random_key(state.seed, purpose, static_cast<uint64_t>(state.step));
    const T kept = static_cast<T>(1 - rate);
    y.for_each([&](int64_t n, int64_t c, int64_t h, int64_t w) {
      const int64_t i = ((map.example(n) * shape[1] + c) * shape[2] + h) * shape[3] + w;
      const bool keep = random_uniform(key, static_cast<uint64_t>(i)) >= rate;
      y(n, c, h, w) = keep ? x(n, c, h, w) / kept : T(0);
    });
  });
}

template KernelResult dropout<float>(const Binding&);
template KernelResult dropout<double>(const Binding&);

}  // namespace convnet::reference
