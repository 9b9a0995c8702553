#include "checkpoint.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "error.h"
#include "sha256.h"
#include "tensorfile.h"

namespace gg {
namespace {

namespace fs = std::filesystem;

constexpr const char *kFormat = "gluongraph-checkpoint", *kManifest = "MANIFEST.json", *kAbout = "trainer.json";
constexpr int64_t kVersion = 1;
constexpr const char* kTemporary = ".tmp-";

// A checkpoint that is not what was written.
class Damaged : public Error {
 public:
  using Error::Error;
};

struct Saved {
  fs::path path;
  int64_t number;
  Json files;
};

std::string_view text_of(const Memory& memory) { return memory.text(); }

// The digest of a manifest, its own left out.
std::string digest_of(const Json& manifest) {
  Json rest = Json::object();
  for (const auto& [name, value] : manifest.members()) {
    if (name != "sha256") rest.set(name, value);
  }
  return sha256(rest.dump(true));
}

template <class Work>
auto reading(const fs::path& folder, Work work) {
  try {
    return work();
  } catch (const Damaged&) {
    throw;
  } catch (const Error& error) {
    throw Damaged(folder.string() + " is damaged: " + error.what());
  }
}

Saved manifest_of(const fs::path& path) {
  const Json told = reading(path, [&] {
    const Memory file = read_file(path / kManifest);
    Json manifest = Json::parse(text_of(file), kManifest);
    if (manifest.at("format").text() != kFormat) fail("its ", kManifest, " is not that of a checkpoint");
    if (manifest.at("sha256").text() != digest_of(manifest)) fail("its ", kManifest, " has been changed");
    return manifest;
  });
  const int64_t version = told.at("format_version").integer();
  if (version > kVersion) fail(path.string(), " has format ", version, ", and this program reads up to ", kVersion);
  return {path, told.at("number").integer(), told.at("files")};
}

Checkpoint read_checkpoint(const Saved& saved) {
  return reading(saved.path, [&] {
    Checkpoint made;
    made.path = saved.path;
    for (const auto& [name, row] : saved.files.members()) {
      if (name.find('/') != std::string::npos || name == "..") fail("its ", kManifest, " names ", name, ", no file in it");
      if (!fs::is_regular_file(fs::symlink_status(saved.path / name))) fail(name, " is missing, or no file but a link");
      Memory file = read_file(saved.path / name);
      const uint64_t bytes = row.at("bytes").unsigned_integer();
      if (file.size() != bytes) fail(name, " has ", file.size(), " bytes instead of ", bytes);
      if (sha256(text_of(file)) != row.at("sha256").text()) fail("the content of ", name, " has changed");
      if (name == kAbout) {
        made.about = Json::parse(text_of(file), name);
      } else {
        made.groups[name.substr(0, name.find('-'))] = TensorFile::parse(file.data(), file.size(), name).tensors;
      }
      made.files.push_back(std::move(file));
    }
    return made;
  });
}

// Does a text begin with "step-" and at least eight digits, and what follows these?
bool is_step(std::string_view text, std::string_view& rest) {
  constexpr std::string_view kDigits = "0123456789", kStep = "step-";
  if (text.substr(0, kStep.size()) != kStep) return false;
  text.remove_prefix(kStep.size());
  const size_t digits = std::min(text.find_first_not_of(kDigits), text.size());
  rest = text.substr(digits);
  return digits >= 8;
}

// Is it "step-00000012" or "step-00000012-v1"?
bool is_name(const fs::path& path) {
  const std::string name = path.filename().string();
  std::string_view rest;
  if (!is_step(name, rest)) return false;
  if (rest.empty()) return true;
  return rest.size() > 2 && rest.substr(0, 2) == "-v" && rest.find_first_not_of("0123456789", 2) == rest.npos;
}

// The checkpoints of a run, the newest first; and what is wrong with others.
std::vector<Saved> survey(const fs::path& run, std::vector<std::string>& damaged) {
  std::vector<fs::path> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(run)) {
    if (is_name(entry.path())) names.push_back(entry.path());
  }
  std::sort(names.begin(), names.end());
  std::vector<Saved> saved;
  for (const fs::path& name : names) {
    try {
      saved.push_back(manifest_of(name));
    } catch (const Damaged& error) {
      damaged.emplace_back(error.what());
    }
  }
  std::stable_sort(saved.begin(), saved.end(), [](const Saved& a, const Saved& b) { return a.number > b.number; });
  return saved;
}

// A folder's lock while this lives, if nobody else has it: then nobody else is writing here.
class Lock {
 public:
  explicit Lock(const fs::path& folder) : handle_(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    alone_ = handle_ >= 0 && flock(handle_, LOCK_EX | LOCK_NB) == 0;
  }
  ~Lock() {
    if (handle_ >= 0) close(handle_);
  }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

  bool alone() const { return alone_; }

 private:
  int handle_;
  bool alone_;
};

// Removes what processes that ended within a save have left.
void clean(const fs::path& run) {
  for (const fs::directory_entry& entry : fs::directory_iterator(run)) {
    const std::string name = entry.path().filename().string();
    if (name.rfind(kTemporary, 0) != 0) continue;
    const std::string_view text = std::string_view(name).substr(std::strlen(kTemporary));
    std::string_view rest;
    const bool step = is_step(text, rest) && rest.substr(0, 1) == "-";
    if (step || text.rfind("last-", 0) == 0 || text.rfind("best-", 0) == 0) fs::remove_all(entry.path());
  }
}

// Where a checkpoint of this step goes: "step-00000012", or if that exists "step-00000012-v1", and so on.
fs::path place_for(const fs::path& run, int64_t step) {
  char name[40];
  std::snprintf(name, sizeof name, "step-%08lld", static_cast<long long>(step));
  fs::path place = run / name;
  for (int version = 1; fs::symlink_status(place).type() != fs::file_type::not_found; ++version) {
    place = run / (name + ("-v" + std::to_string(version)));
  }
  return place;
}

Json described(const Written& file) {
  return Json::object({{"bytes", Json::unsigned_integer(file.bytes)}, {"sha256", Json::text(file.sha256)}});
}

// All files, the manifest last, on disk when this returns.
void fill(const fs::path& folder, int64_t step, int64_t number, const Groups& groups, const Json& about,
          const Json& writer) {
  Json files = Json::object();
  for (const auto& [group, arrays] : groups) {
    const std::string name = group + "-00000-of-00001.safetensors";
    const TensorPieces made = tensor_pieces(arrays);
    std::vector<std::string_view> pieces{made.header};
    pieces.insert(pieces.end(), made.pieces.begin(), made.pieces.end());
    files.set(name, described(write_file(folder / name, pieces)));
  }
  files.set(kAbout, described(write_file(folder / kAbout, {about.dump()})));
  Json manifest = Json::object({{"format", Json::text(kFormat)},
                                {"format_version", Json::integer(kVersion)},
                                {"writer", writer},
                                {"number", Json::integer(number)},
                                {"step", Json::integer(step)},
                                {"metrics", Json::object()},
                                {"files", std::move(files)}});
  manifest.set("sha256", Json::text(digest_of(manifest)));
  write_file(folder / kManifest, {manifest.dump()});
  synchronize_folder(folder);
}

// The one rename by which a folder becomes a checkpoint.
fs::path commit(const fs::path& temporary, const fs::path& run, int64_t step) {
  for (;;) {
    const fs::path place = place_for(run, step);
    if (std::rename(temporary.c_str(), place.c_str()) == 0) {
      synchronize_folder(run);
      return place;
    }
    if (errno != EEXIST && errno != ENOTEMPTY && errno != ENOTDIR) fail(place.string(), ": ", std::strerror(errno));
  }
}

void link_last(const fs::path& place) {
  const fs::path temporary = place.parent_path() / (std::string(kTemporary) + "last-" + std::to_string(getpid()));
  fs::create_symlink(place.filename(), temporary);
  fs::rename(temporary, place.parent_path() / "last");
}

}  // namespace

std::string save_checkpoint(const std::string& run_, int64_t step, const Groups& groups, const Json& about,
                            const Json& writer) {
  const fs::path run(run_);
  try {
    fs::create_directories(run);
    const Lock lock(run);
    if (lock.alone()) clean(run);
    std::vector<std::string> damaged;
    const std::vector<Saved> saved = survey(run, damaged);
    const fs::path temporary =
        run / (kTemporary + place_for(run, step).filename().string() + "-" + std::to_string(getpid()));
    fs::create_directory(temporary);
    try {
      fill(temporary, step, saved.empty() ? 1 : saved.front().number + 1, groups, about, writer);
      const fs::path place = commit(temporary, run, step);
      link_last(place);
      return place;
    } catch (...) {
      std::error_code ignored;
      fs::remove_all(temporary, ignored);
      throw;
    }
  } catch (const std::exception& error) {
    fail("the checkpoint of step ", step, " could not be saved in ", run_, ": ", error.what());
  }
}

Checkpoint load_checkpoint(const std::string& folder, std::vector<std::string>& damaged) {
  fs::path place(folder);
  std::error_code ignored;
  if (fs::is_symlink(place, ignored)) place = fs::weakly_canonical(place);
  if (fs::exists(place / kManifest, ignored) || is_name(place)) {
    if (!fs::is_directory(place, ignored)) fail("there is no checkpoint ", place.string());
    return read_checkpoint(manifest_of(place));
  }
  if (!fs::is_directory(place, ignored)) fail("there is no folder ", folder);
  for (const Saved& saved : survey(place, damaged)) {
    try {
      return read_checkpoint(saved);
    } catch (const Damaged& error) {
      damaged.emplace_back(error.what());
    }
  }
  std::string all;
  for (const std::string& each : damaged) all += (all.empty() ? "" : "; ") + each;
  if (all.empty()) fail("there is no checkpoint in ", folder);
  fail(folder, " has no whole checkpoint: ", all);
}

}  // namespace gg
