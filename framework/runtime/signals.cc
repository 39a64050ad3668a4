#include "framework/runtime/signals.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>

#include "framework/base/check.h"

namespace convnet {
namespace {

// Lock-free, hence safe in a handler.
std::atomic<int> g_stop{0};
std::atomic<bool> g_checkpoint{false};
std::atomic<bool> g_active{false};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

void on_stop(int signal) {
  int none = 0;
  if (!g_stop.compare_exchange_strong(none, signal)) _exit(128 + signal);
}
void on_checkpoint(int) { g_checkpoint.store(true); }

struct Handled {
  int signal;
  void (*handler)(int);
};
constexpr int kCount = 7;
const Handled kHandled[kCount] = {
    {SIGINT, on_stop},        {SIGTERM, on_stop}, {SIGXCPU, on_stop}, {SIGHUP, on_checkpoint},
    {SIGUSR1, on_checkpoint}, {SIGPIPE, SIG_IGN}, {SIGXFSZ, SIG_IGN}};
struct sigaction g_before[kCount];

}  // namespace

SignalScope::SignalScope() {
  CHECK(!g_active.exchange(true));
  g_stop.store(0);
  g_checkpoint.store(false);
  for (int i = 0; i < kCount; ++i) {
    struct sigaction action {};
    action.sa_handler = kHandled[i].handler;
    sigemptyset(&action.sa_mask);
    action.sa_flags = SA_RESTART;
    sigaction(kHandled[i].signal, &action, &g_before[i]);
  }
}

SignalScope::~SignalScope() {
  for (int i = 0; i < kCount; ++i) sigaction(kHandled[i].signal, &g_before[i], nullptr);
  g_active.store(false);
}

int stop_signal() { return g_stop.load(); }

bool take_checkpoint_request() { return g_checkpoint.exchange(false); }

}  // namespace convnet
