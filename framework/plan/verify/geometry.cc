// Shapes of the logical tensors of each operation, and whether the boxes of its operands hold what
// the boxes of its results need.
#include "framework/plan/verify/geometry.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "framework/plan/rows.h"
#include "framework/plan/verify/box_set.h"

namespace convnet {
namespace {

int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0 ? 1 : 0); }  // b > 0
int64_t ceil_div(int64_t a, int64_t b) { return -floor_div(-a, b); }

// The window of a convolution or of pooling along rows or columns.
struct Window {
  int64_t kernel, stride, pad, dilation;

  int64_t span() const { return (kernel - 1) * dilation + 1; }
  // The rows of an image of `extent` rows that these output rows read.
  Range inputs(Range out, int64_t extent) const {
    const Range r{out.lo * stride - pad, (out.hi - 1) * stride - pad + span()};
    return {std::clamp<int64_t>(r.lo, 0, extent), std::clamp<int64_t>(r.hi, 0, extent)};
  }
  // The output rows, of `extent`, whose windows reach these rows of the image.
  Range outputs(Range in, int64_t extent) const {
    const Range r{ceil_div(in.lo + pad - span() + 1, stride),
                  floor_div(in.hi - 1 + pad, stride) + 1};
    return {std::clamp<int64_t>(r.lo, 0, extent), std::clamp<int64_t>(r.hi, 0, extent)};
  }
};

// One instruction.
class Geometry : InstrGeometry {
 public:
  using InstrGeometry::InstrGeometry;

  void run() {
    partial_operands();
    one_sub_batch();
    switch (instr_.op) {
      case Op::kRowsJoin:
        return rows_join();
      case Op::kSum:
        return sum();
      case Op::kConvFwd:
        return conv_forward();
      case Op::kConvBwdData:
        return conv_backward_data();
      case Op::kConvBwdWeight:
        return conv_backward_weight();
      case Op::kFcFwd:
        return fc_forward();
      case Op::kFcBwdData:
        return fc_backward_data();
      case Op::kFcBwdWeight:
        return fc_backward_weight();
      case Op::kPoolMaxFwd:
      case Op::kPoolAvgFwd:
        return pool_forward();
      case Op::kPoolMaxBwd:
      case Op::kPoolAvgBwd:
        return pool_backward();
      case Op::kActFwd:
      case Op::kActBwd:
      case Op::kDropoutFwd:
      case Op::kDropoutBwd:
      case Op::kAdd:
        return same_everywhere();
      case Op::kLrnFwd:
      case Op::kLrnBwd:
        return lrn();
      case Op::kConcatFwd:
        return concat(instr_.in, out(0));
      case Op::kConcatBwd:
        return concat(instr_.out, in(0));
      case Op::kBiasFwd:
        return bias_forward();
      case Op::kBiasBwd:
        return bias_backward();
      case Op::kSoftmaxLossFwd:
      case Op::kSoftmaxStats:
      case Op::kSoftmaxNorm:
      case Op::kSoftmaxMetrics:
      case Op::kSoftmaxLossBwd:
        return check_loss_geometry(plan_, device_index_, instr_index_, faults_);
      case Op::kUpdateSgd:
        return update();
      case Op::kGuard:
        return whole(in(0), 0, "entries");
      case Op::kExchange:
        return;  // exchanges.cc
    }
  }

 private:
  // Only sums pass partial sums on, and only some operations make them.
  void partial_operands() {
    if (instr_.op == Op::kExchange || instr_.op == Op::kSum) return;
    if (instr_.op == Op::kGuard) return;  // sums.cc
    const bool linear = instr_.op == Op::kAdd && instr_.attrs.word("act") == "none";
    for (const Operand& o : instr_.in) {
      const Part& p = part(o);
      if (p.of == 1 && !linear) continue;
      if (!linear)
        fault("complete",
              fmt::format("{} holds partial sum {} of {}, must be complete", name(o), p.k, p.of));
      else if (p.k != part(in(0)).k || p.of != part(in(0)).of)
        fault("complete", fmt::format("adds partial sum {} of {} to partial sum {} of {}", p.k,
                                      p.of, part(in(0)).k, part(in(0)).of));
    }
    for (size_t i = 0; i < instr_.out.size(); ++i) {
      const Part& p = part(out(i));
      if (linear && (p.k != part(in(0)).k || p.of != part(in(0)).of))
        fault("complete", fmt::format("{} holds partial sum {} of {}, the sum is {} of {}",
                                      name(out(i)), p.k, p.of, part(in(0)).k, part(in(0)).of));
      if (p.of > 1 && !linear && !makes_partial_sums(i))
        fault("complete",
              fmt::format("{} holds partial sum {} of {}, but the operation makes complete values",
                          name(out(i)), p.k, p.of));
    }
  }

  bool makes_partial_sums(size_t result) const {
    switch (instr_.op) {
      case Op::kConvFwd:
      case Op::kFcFwd:
        return instr_.in.size() == 2 && instr_.attrs.word("act") == "none";
      case Op::kConvBwdData:
      case Op::kConvBwdWeight:
      case Op::kFcBwdData:
      case Op::kFcBwdWeight:
      case Op::kBiasBwd:
      case Op::kSoftmaxMetrics:
        return true;
      case Op::kSoftmaxLossFwd:
        return result == 1;
      default:
        return false;
    }
  }

  Window window(int axis, int64_t kernel) const {
    const auto i = static_cast<size_t>(axis);
    return {kernel, instr_.attrs.list("stride")[i], instr_.attrs.list("pad")[i],
            instr_.attrs.has("dilation") ? instr_.attrs.list("dilation")[i] : 1};
  }

  // The logical shapes of a convolution: x[N,C,H,W], w[K,C/groups,R,S], y[N,K,P,Q].
  bool conv_shapes(const Operand& x, const Operand& w, const Operand& y) {
    if (!rank(w, 4)) return false;
    const int64_t groups = instr_.attrs.integer("groups");
    const Shape &xs = shape(x), &ws = shape(w), &ys = shape(y);
    bool good = agree("the number of filters", ws[0], ys[1]) &
                agree("the number of channels of a filter", ws[1], xs[1] / groups);
    if (ws[0] % groups != 0 || xs[1] % groups != 0) {
      fault("shape", fmt::format("{} groups do not divide {} filters and {} channels", groups,
                                 ws[0], xs[1]));
      good = false;
    }
    for (int a = 0; a < 2; ++a) {
      const Window win = window(a, ws[2 + a]);
      const int64_t room = xs[2 + a] + 2 * win.pad - win.span();
      const int64_t extent = room < 0 ? 0 : room / win.stride + 1;
      good &= agree(a == 0 ? "the number of output rows" : "the number of output columns",
                    ys[2 + a], extent);
    }
    return good;
  }

  // Channels of x that these filters read, and filters that read these channels.
  Range channels_of(Range filters, const Shape& ws) const {
    const int64_t per_group = ws[0] / instr_.attrs.integer("groups");
    return {filters.lo / per_group * ws[1], ((filters.hi - 1) / per_group + 1) * ws[1]};
  }
  Range filters_of(Range channels, const Shape& ws) const {
    const int64_t per_group = ws[0] / instr_.attrs.integer("groups");
    return {channels.lo / ws[1] * per_group, ((channels.hi - 1) / ws[1] + 1) * per_group};
  }
  bool one_group() {
    return instr_.attrs.integer("groups") == 1 ||
           (fault("complete", "partial sums over channels need groups=1"), false);
  }
  // Each group sums over channels of its own.
  void cuts_of_one_group(const char* cuts) {
    const int64_t groups = instr_.attrs.integer("groups");
    if (instr_.attrs.has(cuts) && groups != 1)
      fault("attribute", fmt::format("'{}' goes with groups=1, not with {}", cuts, groups));
  }

  void conv_forward() {
    const Operand &x = in(0), &w = in(1), &y = out(0);
    if (!conv_shapes(x, w, y)) return;
    equals(x, 0, range(y, 0), "examples");
    equals(w, 0, range(y, 1), "filters");
    cuts_of_one_group("channel_cuts");
    if (part(y).of > 1) {
      if (one_group()) equals(x, 1, range(w, 1), "channels");
    } else {
      whole(w, 1, "channels");
      covers(x, 1, channels_of(range(y, 1), shape(w)), "channels");
    }
    for (int a = 2; a < 4; ++a) {
      whole(w, a, a == 2 ? "window rows" : "window columns");
      covers(x, a, window(a - 2, shape(w)[a]).inputs(range(y, a), shape(x)[a]), kActivationDims[a]);
    }
    bias(2, instr_.in, w, range(y, 1));
  }

  void bias(size_t index, const std::vector<Operand>& list, const Operand& w, Range filters) {
    if (list.size() <= index || !rank(list[index], 1)) return;
    if (agree("the length of the bias", shape(list[index])[0], shape(w)[0]))
      equals(list[index], 0, filters, "filters");
  }

  void conv_backward_data() {
    const Operand &dy = in(0), &w = in(1), &dx = out(0);
    if (!conv_shapes(dx, w, dy)) return;
    equals(dy, 0, range(dx, 0), "examples");
    cuts_of_one_group("filter_cuts");
    if (part(dx).of > 1) {
      if (one_group()) equals(dy, 1, range(w, 0), "filters");
      covers(w, 1, range(dx, 1), "channels");
    } else {
      const Range filters = filters_of(range(dx, 1), shape(w));
      covers(dy, 1, filters, "filters");
      covers(w, 0, filters, "filters");
      instr_.attrs.integer("groups") == 1 ? covers(w, 1, range(dx, 1), "channels")
                                          : whole(w, 1, "channels");
    }
    for (int a = 2; a < 4; ++a) {
      whole(w, a, a == 2 ? "window rows" : "window columns");
      covers(dy, a, window(a - 2, shape(w)[a]).outputs(range(dx, a), shape(dy)[a]),
             kActivationDims[a]);
    }
  }

  void conv_backward_weight() {
    const Operand &x = in(0), &dy = in(1), &dw = out(0);
    if (!conv_shapes(x, dw, dy)) return;
    equals(x, 0, range(dy, 0), "examples");
    covers(dy, 1, range(dw, 0), "filters");
    // A filter's own channels dw.lo:dw.hi lie within its group's.
    const Range group = channels_of(range(dw, 0), shape(dw));
    instr_.attrs.integer("groups") == 1 ? covers(x, 1, range(dw, 1), "channels")
                                        : covers(x, 1, group, "channels");
    for (int a = 2; a < 4; ++a) {
      whole(dw, a, a == 2 ? "window rows" : "window columns");
      covers(x, a, window(a - 2, shape(dw)[a]).inputs(range(dy, a), shape(x)[a]),
             kActivationDims[a]);
    }
    bias(1, instr_.out, dw, range(dw, 0));
    sums_over(dy, {0, 2, 3}, instr_.out);
  }

  void bias_forward() {
    const Operand &z = in(0), &y = out(0);
    if (!same_shape(z, y)) return;
    same_box(z, y);
    if (instr_.in.size() > 1 && rank(in(1), 1) &&
        agree("the length of the bias", shape(in(1))[0], shape(y)[1]))
      equals(in(1), 0, range(y, 1), "filters");
  }

  void bias_backward() {
    const Operand &dy = in(0), &db = out(0);
    if (!rank(db, 1) || !agree("the length of the bias", shape(db)[0], shape(dy)[1])) return;
    covers(dy, 1, range(db, 0), "filters");
    sums_over(dy, {0, 2, 3}, instr_.out);
  }

  // The logical shapes of a fully-connected layer: x[N,C,H,W], w[K,C*H*W], y[N,K,1,1].
  bool fc_shapes(const Operand& x, const Operand& w, const Operand& y) {
    if (!rank(w, 2)) return false;
    const Shape &xs = shape(x), &ws = shape(w), &ys = shape(y);
    return agree("the number of inputs", ws[1], xs[1] * xs[2] * xs[3]) &
           agree("the number of outputs", ys[1], ws[0]) &
           agree("the number of output rows", ys[2], 1) &
           agree("the number of output columns", ys[3], 1);
  }
  // The columns of w that these channels of x meet.
  Range columns_of(const Operand& x) const {
    const int64_t area = shape(x)[2] * shape(x)[3];
    return {x.box.lo(1) * area, x.box.hi(1) * area};
  }

  void fc_forward() {
    const Operand &x = in(0), &w = in(1), &y = out(0);
    if (!fc_shapes(x, w, y)) return;
    equals(x, 0, range(y, 0), "examples");
    equals(w, 0, range(y, 1), "outputs");
    whole(x, 2, "rows");
    whole(x, 3, "columns");
    if (part(y).of > 1) {
      equals(w, 1, columns_of(x), "inputs");
    } else {
      whole(x, 1, "channels");
      whole(w, 1, "inputs");
    }
    bias(2, instr_.in, w, range(y, 1));
  }

  void fc_backward_data() {
    const Operand &dy = in(0), &w = in(1), &dx = out(0);
    if (!fc_shapes(dx, w, dy)) return;
    equals(dy, 0, range(dx, 0), "examples");
    whole(dx, 2, "rows");
    whole(dx, 3, "columns");
    covers(w, 1, columns_of(dx), "inputs");
    if (part(dx).of > 1) {
      equals(dy, 1, range(w, 0), "outputs");
    } else {
      whole(dy, 1, "outputs");
      whole(w, 0, "outputs");
    }
  }

  void fc_backward_weight() {
    const Operand &x = in(0), &dy = in(1), &dw = out(0);
    if (!fc_shapes(x, dw, dy)) return;
    equals(x, 0, range(dy, 0), "examples");
    whole(x, 2, "rows");
    whole(x, 3, "columns");
    covers(dy, 1, range(dw, 0), "outputs");
    const Range columns = columns_of(x);
    if (dw.box.lo(1) < columns.lo || dw.box.hi(1) > columns.hi)
      fault("coverage", fmt::format("{} has the inputs {}:{}, {} holds {}:{}", name(dw),
                                    dw.box.lo(1), dw.box.hi(1), name(x), columns.lo, columns.hi));
    bias(1, instr_.out, dw, range(dw, 0));
    sums_over(dy, {0}, instr_.out);
  }

  // Rounded down or up, and the last window begins inside the image.
  bool pool_shapes(const Operand& x, const Operand& y) {
    const Shape &xs = shape(x), &ys = shape(y);
    bool good = agree("the number of output channels", ys[1], xs[1]);
    for (int a = 0; a < 2; ++a) {
      const Window win = window(a, instr_.attrs.list("kernel")[static_cast<size_t>(a)]);
      const int64_t room = xs[2 + a] + 2 * win.pad - win.kernel;
      const int64_t extent = ys[2 + a];
      const auto starts_inside = [&](int64_t i) { return i * win.stride - win.pad < xs[2 + a]; };
      const bool enough = extent >= floor_div(room, win.stride) + 1 || !starts_inside(extent);
      if (win.pad < win.kernel && room >= 0 && extent <= ceil_div(room, win.stride) + 1 &&
          starts_inside(extent - 1) && enough)
        continue;
      fault(
          "shape",
          fmt::format("windows of {} with stride {} and pad {} over {} {} do not give {}",
                      win.kernel, win.stride, win.pad, xs[2 + a], kActivationDims[2 + a], extent));
      good = false;
    }
    return good;
  }

  void pool_forward() {
    const Operand &x = in(0), &y = out(0);
    if (!pool_shapes(x, y)) return;
    equals(x, 0, range(y, 0), "examples");
    covers(x, 1, range(y, 1), "channels");
    for (int a = 2; a < 4; ++a) {
      const Window win = window(a - 2, instr_.attrs.list("kernel")[static_cast<size_t>(a - 2)]);
      covers(x, a, win.inputs(range(y, a), shape(x)[a]), kActivationDims[a]);
    }
  }

  void pool_backward() {
    const bool max = instr_.op == Op::kPoolMaxBwd;
    const Operand &dy = in(max ? 1 : 0), &dx = out(0);
    if (!pool_shapes(dx, dy)) return;
    equals(dy, 0, range(dx, 0), "examples");
    covers(dy, 1, range(dx, 1), "channels");
    if (max && same_shape(in(0), dx)) {
      equals(in(0), 0, range(dx, 0), "examples");
      covers(in(0), 1, range(dx, 1), "channels");
    }
    for (int a = 2; a < 4; ++a) {
      const Window win = window(a - 2, instr_.attrs.list("kernel")[static_cast<size_t>(a - 2)]);
      const Range outputs = win.outputs(range(dx, a), shape(dy)[a]);
      covers(dy, a, outputs, kActivationDims[a]);
      // Where a window's maximum lies is known only with the whole window.
      if (max && outputs.lo < outputs.hi)
        covers(in(0), a, win.inputs(outputs, shape(dx)[a]), kActivationDims[a]);
    }
  }

  void same_everywhere() {
    for (const Operand& o : instr_.in)
      if (same_shape(o, out(0))) same_box(o, out(0));
  }

  void lrn() {
    if (instr_.attrs.integer("size") % 2 == 0)
      return fault("attribute",
                   fmt::format("'size' is {}, must be odd", instr_.attrs.integer("size")));
    const Operand& y = out(0);
    const int64_t reach = instr_.attrs.integer("size") / 2;
    for (size_t i = 1; i < instr_.out.size(); ++i)
      if (same_shape(out(i), y)) same_box(out(i), y);
    for (const Operand& o : instr_.in) {
      if (!same_shape(o, y)) continue;
      for (int dim : {0, 2, 3}) equals(o, dim, range(y, dim), kActivationDims[dim]);
      covers(o, 1,
             {std::max<int64_t>(0, y.box.lo(1) - reach),
              std::min<int64_t>(shape(y)[1], y.box.hi(1) + reach)},
             "channels");
    }
  }

  // One after the other along the channels. The joined tensor may be a range of them: each part has
  // what of the range is its own, which may be nothing.
  void concat(const std::vector<Operand>& parts, const Operand& joined) {
    int64_t first = 0;  // channel of the joined tensor at which the part begins
    for (const Operand& o : parts) {
      const int64_t channels = shape(o)[1];
      for (int dim : {2, 3}) agree(kActivationDims[dim], shape(o)[dim], shape(joined)[dim]);
      const Range own{std::max(joined.box.lo(1), first) - first,
                      std::min(joined.box.hi(1), first + channels) - first};
      first += channels;
      if (own.lo >= own.hi) {
        if (!o.box.empty())
          fault("coverage", fmt::format("{} must be empty: none of its channels is in {}", name(o),
                                        name(joined)));
      } else if (o.box.empty()) {
        fault("coverage",
              fmt::format("{} is empty, must have the channels {}:{}", name(o), own.lo, own.hi));
      } else {
        for (int dim : {0, 2, 3}) equals(o, dim, range(joined, dim), kActivationDims[dim]);
        equals(o, 1, own, "channels");
      }
    }
    agree("the number of channels of the parts", first, shape(joined)[1]);
  }

  // Rows of one number stand for one example in all operands and results.
  void one_sub_batch() {
    if (instr_.op == Op::kExchange || instr_.op == Op::kRowsJoin) return;
    const Operand* first = nullptr;
    for (const auto* list : {&instr_.in, &instr_.out})
      for (const Operand& o : *list) {
        const Tensor& t = tensor_of(plan_, device_, o);
        if (t.format != Format::kBlocked) continue;
        if (first == nullptr) first = &o;
        if (rows_of(t) != rows_of(tensor_of(plan_, device_, *first)))
          fault("rows",
                fmt::format("{} and {} stand for different examples", name(*first), name(o)));
      }
    if (instr_.op != Op::kDropoutFwd && instr_.op != Op::kDropoutBwd) return;
    const std::vector<int64_t> own =
        instr_.attrs.has("rows") ? instr_.attrs.list("rows") : std::vector<int64_t>();
    if (own != rows_of(tensor_of(plan_, device_, out(0))))
      fault("rows", fmt::format("'rows' are not those of {}", name(out(0))));
  }

  // Each row of the result is that of exactly one operand.
  void rows_join() {
    const Operand& y = out(0);
    const RowMap map = row_map(tensor_of(plan_, device_, y));
    BoxSet found;
    int64_t count = 0;
    for (const Operand& o : instr_.in) {
      for (int dim = 1; dim < shape(y).rank(); ++dim) {
        if (!agree(kActivationDims[dim], shape(o)[dim], shape(y)[dim])) return;
        equals(o, dim, range(y, dim), kActivationDims[dim]);
      }
      for (const RowRun& run :
           common_rows(row_map(tensor_of(plan_, device_, o)), o.box.lo(0), o.box.hi(0), map)) {
        Box rows = y.box;
        rows.set(0, std::max(run.to, y.box.lo(0)), std::min(run.to + run.count, y.box.hi(0)));
        if (rows.lo(0) >= rows.hi(0)) continue;
        count += rows.count();
        found.add(rows);
      }
    }
    const auto missing = found.missing(y.box);
    if (!missing.empty())
      fault("coverage", fmt::format("no operand holds {} of {}", missing.front().str(), name(y)));
    else if (count != y.box.count())
      fault("coverage", fmt::format("operands hold some rows of {} twice", name(y)));
  }

  // Partial sums k, k + 1, ... of one kind, k a multiple of their number.
  void sum() {
    const auto n = static_cast<int>(instr_.in.size());
    const Part& s = part(out(0));
    for (int i = 0; i < n; ++i) {
      const Operand& o = in(static_cast<size_t>(i));
      if (!same_shape(o, out(0))) return;
      same_box(o, out(0));
      if (buffer_of(device_, o).tensor != buffer_of(device_, out(0)).tensor)
        fault("partial", fmt::format("{} is no part of the tensor of {}", name(o), name(out(0))));
      const Part& p = part(o);
      if (p.of != s.of * n || p.k != s.k * n + i)
        fault("partial", fmt::format("{} holds partial sum {} of {}, must hold {} of {}", name(o),
                                     p.k, p.of, s.k * n + i, s.of * n));
    }
  }

  void update() {
    for (size_t i = 1; i < 3; ++i)
      if (same_shape(in(i), in(0))) same_box(in(i), in(0));
    for (size_t i = 0; i < 2; ++i)
      if (!(out(i) == in(i + 1)))
        fault("in-place",
              fmt::format("result {} is {}, must be {} itself", i, name(out(i)), name(in(i + 1))));
  }
};

}  // namespace

void check_geometry(const Plan& plan, Faults& faults) {
  for (size_t d = 0; d < plan.devices.size(); ++d)
    for (size_t i = 0; i < plan.devices[d].instrs.size(); ++i)
      Geometry(plan, static_cast<int>(d), static_cast<int>(i), faults).run();
}

}  // namespace convnet
