// Signals of a run. SIGINT, SIGTERM and SIGXCPU ask it to stop after the step, a second one ends
// the process at once; SIGHUP and SIGUSR1 ask for a checkpoint; SIGPIPE and SIGXFSZ are ignored, so
// that writing reports an error.
#pragma once

namespace convnet {

// While one is alive, the process handles signals as above; afterwards as before. One at a time.
class SignalScope {
 public:
  SignalScope();
  ~SignalScope();
  SignalScope(const SignalScope&) = delete;
  SignalScope& operator=(const SignalScope&) = delete;
};

// The signal that asked to stop; 0: none. The process then exits with 128 + the signal.
int stop_signal();

// True once for each time that a checkpoint was asked for.
bool take_checkpoint_request();

}  // namespace convnet
