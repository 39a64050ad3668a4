// What sub-batches need: joining their rows, and adding up the partial sums that they make.
#include "framework/backends/reference/access.h"
#include "framework/backends/reference/kernels.h"
#include "framework/backends/reference/require.h"
#include "framework/backends/reference/tree_sum.h"
#include "framework/plan/rows.h"

namespace convnet::reference {

template <typename T>
KernelResult rows_join(const Binding& binding) {
  Require require(binding);
  if (!require.ok()) return require.status();
  const View& out = binding.out[0];
  require.activation(out, "y", DTypeOf<T>::value);
  struct Piece {
    Access<T> x;
    std::vector<RowRun> runs;  // rows of x, rows of y
  };
  std::vector<Piece> pieces;
  int64_t found = 0;
  for (size_t i = 0; i < binding.in.size(); ++i) {
    const View& in = binding.in[i];
    const std::string name = "x" + std::to_string(i);
    require.activation(in, name, DTypeOf<T>::value);
    if (!require.ok()) return require.status();
    for (int dim = 1; dim < 4; ++dim)
      require.that(in.shape[dim] == out.shape[dim] && in.box.lo(dim) == out.box.lo(dim) &&
                       in.box.hi(dim) == out.box.hi(dim),
                   name + " is " + in.box.str() + " of " + in.shape.str() + ", y is " +
                       out.box.str() + " of " + out.shape.str());
    Piece piece{Access<T>(in), {}};
    for (RowRun run : common_rows(RowMap(in.rows), in.box.lo(0), in.box.hi(0), RowMap(out.rows))) {
      const int64_t lo = std::max(run.to, out.box.lo(0));
      const int64_t hi = std::min(run.to + run.count, out.box.hi(0));
      if (lo >= hi) continue;
      piece.runs.push_back({run.from + (lo - run.to), lo, hi - lo});
      found += hi - lo;
      for (const Piece& other : pieces)
        for (const RowRun& r : other.runs)
          require.that(r.to + r.count <= lo || hi <= r.to,
                       name + " and an operand before it both hold rows of y within " +
                           std::to_string(lo) + ":" + std::to_string(hi));
    }
    pieces.push_back(std::move(piece));
  }
  require.that(found >= out.box.extent(0), "the operands hold " + std::to_string(found) +
                                               " of the " + std::to_string(out.box.extent(0)) +
                                               " rows of y");
  if (!require.ok()) return require.status();
  return loop_kernel([pieces, y = Access<T>(out)] {
    for (const Piece& piece : pieces)
      for (const RowRun& run : piece.runs)
        for (int64_t i = 0; i < run.count; ++i)
          for (int64_t c = y.lo(1); c < y.hi(1); ++c)
            for (int64_t h = y.lo(2); h < y.hi(2); ++h)
              for (int64_t w = y.lo(3); w < y.hi(3); ++w)
                y(run.to + i, c, h, w) = piece.x(run.from + i, c, h, w);
  });
}

template <typename T>
KernelResult sum(const Binding& binding) {
  Require require(binding);
  if (!require.ok()) return require.status();
  const View& out = binding.out[0];
  require.elementwise(out, "s", DTypeOf<T>::value);
  std::vector<Access<T>> terms;
  std::vector<int64_t> leaves{0};
  for (size_t i = 0; i < binding.in.size(); ++i) {
    const std::string name = "p" + std::to_string(i);
    require.elementwise(binding.in[i], name, DTypeOf<T>::value);
    require.same_shape(binding.in[i], name, out, "s");
    require.covers(binding.in[i], name, out);
    if (!require.ok()) return require.status();
    terms.emplace_back(binding.in[i]);
    leaves.push_back(static_cast<int64_t>(i) + 1);
  }
  return loop_kernel([terms, leaves, s = Access<T>(out)] {
    s.for_each([&](auto... at) {
      s(at...) = tree_sum<T>(
          leaves, [&](int64_t i, int64_t) { return terms[static_cast<size_t>(i)](at...); });
    });
  });
}

template KernelResult rows_join<float>(const Binding&);
template KernelResult rows_join<double>(const Binding&);
template KernelResult sum<float>(const Binding&);
template KernelResult sum<double>(const Binding&);

}  // namespace convnet::reference
