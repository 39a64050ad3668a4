// Random small networks with random placements, made from the samples and rules of the registry: a
// new layer takes part without a line of code here.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace convnet::cli {

struct RandomLayer {
  std::string name, type, attributes;
  std::vector<std::string> inputs;
  std::vector<int> devices;  // empty: not given
  int rows = 0;              // of `devices` as a mesh; 0: no mesh
  std::string parallel, exchange;
};

struct RandomModel {
  int batch = 8, devices = 1, channels = 1, height = 5, width = 5;
  std::string train;  // attributes of the solver
  bool test = false;  // the plan of the test phase
  std::vector<RandomLayer> layers;

  // The model file; without `placed`, modes are kept, and lists of devices and exchanges dropped.
  std::string text(bool placed) const;
};

// The network of a seed, accepted by the compiler on one device.
RandomModel random_network(std::mt19937& random);
// Gives it a placement, which the compiler may refuse.
void place_at_random(RandomModel& model, std::mt19937& random);

// Models that are one step smaller, the largest steps first.
std::vector<RandomModel> smaller_models(const RandomModel& model);

}  // namespace convnet::cli
