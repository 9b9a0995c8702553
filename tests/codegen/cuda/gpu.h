// Runs the CUDA source of a kernel on a CPU: every thread of a block is a fiber, and fibers change places where threads
// wait for each other. Blocks run one after the other. `order` says who comes first: 1 the last thread of a block, 2 the
// last block as well. A kernel whose result depends on it has a race.
#include <algorithm>
#include <cmath>
#include <csetjmp>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <ucontext.h>
#include <vector>

struct dim3 { int x, y, z; };
struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
struct double2 { double x, y; };
struct int2 { int x, y; };
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline double2 make_double2(double x, double y) { return {x, y}; }
inline int2 make_int2(int x, int y) { return {x, y}; }
typedef unsigned int uint;
typedef unsigned char uchar;
typedef unsigned short ushort;
using std::max;
using std::min;
using std::isnan;
inline double normcdf(double x) { return 0.5 * std::erfc(-x * 0.70710678118654752); }
inline float normcdff(float x) { return float(normcdf(x)); }

namespace gpu {

enum State { READY, AT_BARRIER, AT_SHUFFLE, DONE };

struct Thread {
  jmp_buf place;     // where it goes on; of a fiber that has been started
  bool started = false;
  dim3 index;
  State state;
  int turn;          // which of the two slots the next shuffle uses
  double slot[2];    // what this thread shows to its warp
  std::vector<char> stack;
};

// Fibers are kept from block to block, and change places by _longjmp: swapcontext asks the system each time.
static std::vector<Thread> threads(1024);
static size_t count;  // threads of a block
static Thread *current;
static jmp_buf home;
static dim3 block, blocks, size;
static std::function<void()> *body;

static void wait(State state) {
  current->state = state;
  if (!_setjmp(current->place)) _longjmp(home, 1);
}

static void run() {
  for (;;) {
    (*body)();
    wait(DONE);
  }
}

static __attribute__((noinline)) void resume(Thread &t) {
  current = &t;
  if (_setjmp(home)) return;
  if (t.started) _longjmp(t.place, 1);
  t.started = true;
  t.stack.resize(32 * 1024);
  ucontext_t context;
  getcontext(&context);
  context.uc_stack.ss_sp = t.stack.data();
  context.uc_stack.ss_size = t.stack.size();
  context.uc_link = nullptr;
  makecontext(&context, run, 0);
  setcontext(&context);
}

// The value of another thread of the warp, or the own one if there is no such thread.
static double shuffle(double value, size_t other) {
  Thread *self = current;
  int slot = self->turn;
  self->turn = 1 - slot;
  self->slot[slot] = value;
  wait(AT_SHUFFLE);
  size_t lane = self - threads.data();
  return other / 32 == lane / 32 && other < count ? threads[other].slot[slot] : value;
}

static size_t lane() { return current - threads.data(); }

// Threads that wait for their warp go on when all of the warp wait or are done; else the block's barrier opens.
static bool release() {
  bool any = false;
  for (size_t first = 0; first < count; first += 32) {
    size_t end = std::min(first + 32, count);
    for (size_t i = first; i < end; i++)
      if (threads[i].state == AT_SHUFFLE) threads[i].state = READY, any = true;
  }
  if (any) return true;
  for (size_t i = 0; i < count; i++)
    if (threads[i].state == AT_BARRIER) threads[i].state = READY, any = true;
  return any;
}

static void run_block(bool backwards) {
  int n = size.x * size.y * size.z;
  count = n;
  for (int i = 0; i < n; i++) {
    Thread &t = threads[i];
    t.index = {i % size.x, i / size.x % size.y, i / size.x / size.y};
    t.state = READY;
    t.turn = 0;
  }
  do {
    for (int i = 0; i < n; i++) {
      Thread &t = threads[backwards ? n - 1 - i : i];
      if (t.state == READY) resume(t);
    }
  } while (release());
}

static void launch(dim3 grid, dim3 threads_, int order, std::function<void()> kernel) {
  blocks = grid, size = threads_, body = &kernel;
  for (int z = 0; z < grid.z; z++)
    for (int y = 0; y < grid.y; y++)
      for (int x = 0; x < grid.x; x++) {
        block = order > 1 ? dim3{grid.x - 1 - x, grid.y - 1 - y, grid.z - 1 - z} : dim3{x, y, z};
        run_block(order > 0);
      }
}

}  // namespace gpu

#define CUDART_INF_F INFINITY
#define CUDART_NAN_F NAN
#define CUDART_INF HUGE_VAL
#define CUDART_NAN ((double)NAN)
#define __global__
#define __device__
#define __shared__ static
#define __launch_bounds__(n)
#define __restrict__
#define threadIdx (gpu::current->index)
#define blockIdx (gpu::block)
inline void __syncthreads() { gpu::wait(gpu::AT_BARRIER); }
inline unsigned __activemask() { return 0xffffffffu; }
template <class T> T __shfl_down_sync(unsigned, T value, unsigned delta, int) {
  return static_cast<T>(gpu::shuffle(static_cast<double>(value), gpu::lane() + delta));
}
template <class T> T __shfl_sync(unsigned, T value, unsigned source, int width) {
  return static_cast<T>(gpu::shuffle(static_cast<double>(value), gpu::lane() / width * width + source));
}
