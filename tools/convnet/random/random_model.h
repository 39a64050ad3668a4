// Random small networks with random placements, made from the samples and rules of the registry: a
// new layer takes part without a line of code here.
#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

namespace convnet::cli {

struct RandomLayer {
  std::string name, type, attributes;
  std::vector<std::string> inputs;
  std::vector<int> devices;  // empty: not given
  int rows = 0;              // of `devices` as a mesh; 0: no mesh
  std::string parallel;
  bool in_passes = false;
  int update_period = 0;  // of a layer in passes; 0: not given
};

struct RandomModel {
  int batch = 8, devices = 1, channels = 1, height = 5, width = 5;
  std::string train;     // attributes of the solver
  bool test = false;     // the plan of the test phase
  bool integer = false;  // of layers that keep whole numbers
  std::string exchange;  // of the layers in passes, and how many
  int passes = 1;
  std::vector<RandomLayer> layers;

  // Whether what is computed depends on the passes.
  bool updates_in_passes() const;
  // The model file. Without `placed`, the one to compare with: modes are kept, lists of devices are
  // dropped, and passes are unless what is computed depends on them.
  std::string text(bool placed) const;
};

// The network of a seed, accepted by the compiler on one device; if it is to be `integer`, each
// layer by `keeps_integers` as well.
RandomModel random_network(std::mt19937& random,
                           const std::function<bool(const RandomModel&)>& keeps_integers);
// Gives it a placement and passes, which the compiler may refuse.
void place_at_random(RandomModel& model, std::mt19937& random);

// Models that are one step smaller, the largest steps first.
std::vector<RandomModel> smaller_models(const RandomModel& model);

}  // namespace convnet::cli
