// check_data: a model file's data section against its input, each mistake where it stands.
#include "data/source.h"
#include "framework/model/binder.h"
#include "framework/model/model.pb.h"

namespace convnet {

namespace {

class SourceCheck {
 public:
  SourceCheck(const BoundModel& model, Diagnostics& diagnostics)
      : model_(*model.model), spans_(model.spans), diagnostics_(diagnostics) {
    for (uint32_t extent : model_.input().data()) input_.append(extent);
  }

  void check(const schema::Source& source) {
    check_mean(source);
    const bool shapes = check_crop(source);
    if (source.has_synthetic()) check_synthetic(source, shapes);
  }

 private:
  void check_mean(const schema::Source& source) {
    if (source.mean_values().empty()) return;
    const Span values = spans_.value(source, schema::Source::kMeanValuesFieldNumber);
    if (source.mean_values_size() != input_[0])
      note_input(diagnostics_.error(
          values, "mean_values has " + std::to_string(source.mean_values_size()) +
                      " values, but the examples have " + std::to_string(input_[0]) + " channels"));
  }

  // Whether the crop agrees with the input.
  bool check_crop(const schema::Source& source) {
    const int64_t crop = source.crop();
    if (!source.has_crop() || (crop == input_[1] && crop == input_[2])) return true;
    note_input(diagnostics_.error(spans_.value(source, schema::Source::kCropFieldNumber),
                                  "a crop of " + std::to_string(crop) + " x " +
                                      std::to_string(crop) + " pixels, but the model's input is " +
                                      input_.str()));
    return false;
  }

  void check_synthetic(const schema::Source& source, bool crop_agrees) {
    const schema::Synthetic& synthetic = source.synthetic();
    if (synthetic.classes() > model_.input().label().classes() && model_.input().has_label())
      diagnostics_.error(spans_.value(synthetic, schema::Synthetic::kClassesFieldNumber),
                         "synthetic data of " + std::to_string(synthetic.classes()) +
                             " classes, but the model's label has " +
                             std::to_string(model_.input().label().classes()));
    Shape shape;
    for (uint32_t extent : synthetic.shape()) shape.append(extent);
    if (!crop_agrees || shape.rank() != 3) return;
    Shape padded = shape;
    for (int i : {1, 2}) padded.set(i, shape[i] + 2 * int64_t{source.pad()});
    const Span place = spans_.value(synthetic, schema::Synthetic::kShapeFieldNumber);
    if (source.has_crop()) {
      if (shape[0] == input_[0] && padded[1] >= input_[1] && padded[2] >= input_[2]) return;
      note_input(diagnostics_.error(place, "examples of shape " + padded.str() +
                                               " cannot be cut to the model's input " +
                                               input_.str()));
    } else if (!(padded == input_)) {
      note_input(diagnostics_.error(place, "examples of shape " + padded.str() +
                                               ", but the model's input is " + input_.str()));
    }
  }

  void note_input(Diagnostic& error) {
    error.notes.push_back({spans_.value(model_.input(), schema::Inputs::kDataFieldNumber),
                           "the input is given here"});
  }

  const schema::Model& model_;
  const FieldSpans& spans_;
  Diagnostics& diagnostics_;
  Shape input_;
};

}  // namespace

void check_data(const BoundModel& model, Diagnostics& diagnostics) {
  const schema::Data& data = model.model->data();
  SourceCheck check(model, diagnostics);
  if (data.has_train()) check.check(data.train());
  if (data.has_test()) check.check(data.test());
}

}  // namespace convnet
