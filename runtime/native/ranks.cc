#include "ranks.h"

#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <initializer_list>
#include <string>

#include "error.h"

namespace gg {
namespace {

Ranks* connected = nullptr;  // to others

bool has(const char* name) { return std::getenv(name) != nullptr; }

int number_of(const char* name) { return has(name) ? std::atoi(std::getenv(name)) : 0; }

// What distinguishes a rank, as runtime/communicator/environment.py writes it.
std::string identity() {
  std::string text;
  for (const char* name :
       {"PMIX_NAMESPACE", "PMIX_RANK", "PMI_RANK", "PMI_PORT", "PMI_FD", "RANK", "MASTER_PORT"}) {
    text += (text.empty() ? "" : " ") + std::string(has(name) ? std::getenv(name) : "-");
  }
  return text;
}

// Has a rank of Python's started this process? It has the environment of that one, and is no rank itself.
bool is_child_of_rank() {
  const std::string owner = has("GG_COMM_PROCESS") ? std::getenv("GG_COMM_PROCESS") : "";
  const size_t end = owner.find(' ');
  if (end == std::string::npos) return false;
  return owner.substr(end + 1) == identity() && owner.substr(0, end) != std::to_string(getpid());
}

void refuse_torchrun() {
  const bool told = has("RANK") && has("MASTER_ADDR") && has("MASTER_PORT");
  if (!told || number_of("WORLD_SIZE") < 2) return;
  fail("RANK and WORLD_SIZE tell of ", number_of("WORLD_SIZE"), " ranks, which are connected by MPI here: mpiexec -n ",
       number_of("WORLD_SIZE"), " starts them");
}

}  // namespace

int launched_ranks() {
  if (is_child_of_rank()) return 1;
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "PALS_SIZE"}) {
    if (number_of(name) > 0) return number_of(name);
  }
  if (has("PMIX_RANK") || has("PMI_RANK") || has("PMI_FD")) return number_of("SLURM_STEP_NUM_TASKS");
  refuse_torchrun();
  return 1;
}

Ranks& Ranks::get() {
  static Ranks ranks;
  return ranks;
}

void Ranks::abort() {
  // Others may wait for this process in MPI_Init, and mpiexec does not always end them when it ends: it joins them first.
  try {
    if (connected == nullptr && launched_ranks() != 1) get();
  } catch (const std::exception&) {
  }
  if (connected != nullptr && !connected->together_) connected->mpi_.abort(connected->mpi_.world, 2);
}

Ranks::Ranks() {
  const int launched = launched_ranks();
  if (launched == 1) return;
  load_mpi(mpi_);
  int initialized = 0;
  check_mpi(mpi_.initialized(&initialized), "MPI_Initialized");
  if (!initialized) {
    constexpr int kFunneled = 1;  // other threads of this process do not call MPI
    int provided = 0;
    check_mpi(mpi_.init(nullptr, nullptr, kFunneled, &provided), "MPI_Init_thread");
    owned_ = true;
  }
  check_mpi(mpi_.rank(mpi_.world, &rank_), "MPI_Comm_rank");
  check_mpi(mpi_.size(mpi_.world, &size_), "MPI_Comm_size");
  if (launched > 0 && size_ != launched) {
    fail("the launcher has started ", launched, " ranks, and ", mpi_.version, " sees ", size_,
         ": GG_MPI_LIBRARY=/path/to/libmpi_.so names the library of the launcher's MPI");
  }
  if (size_ > 1) connected = this;
}

Ranks::~Ranks() {
  connected = nullptr;
  if (owned_) mpi_.finalize();
}

bool Ranks::agree(uint64_t program, uint64_t numbers, bool failed) {
  if (size_ == 1) return !failed;
  const auto digest = static_cast<int64_t>(program >> 1), number = static_cast<int64_t>(numbers >> 1);
  int64_t values[] = {digest, -digest, number, -number, failed ? rank_ + 1 : 0};
  check_mpi(mpi_.allreduce(mpi_.in_place, values, 5, mpi_.numbers.at("i64"), mpi_.max, mpi_.world), "MPI_Allreduce");
  const bool same_program = values[0] == -values[1], same_numbers = values[2] == -values[3];
  together_ = !same_program || !same_numbers || values[4] != 0;
  if (failed) return false;
  if (values[4] != 0) fail("rank ", values[4] - 1, " has refused its batch, and nothing has changed");
  if (!same_program) fail("not all ranks call the same entry of the same artefact; or one of them has ended");
  if (!same_numbers) fail("rates, counts of updates or seeds are not the same on all ranks, and nothing has changed");
  return true;
}

}  // namespace gg
