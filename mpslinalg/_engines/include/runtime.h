// What the CPU engine's runtime offers a kernel; one table for every compiled variant.

namespace mpsl {

constexpr unsigned SLOT = 32;  // bytes a lane has for a value in a simd function

// The call of a barrier or simd function, for reports.
struct Site {
  const char* what;
  const char* file;
  unsigned line;
};

struct Runtime {
  void (*barrier)(Site site);
  void (*simd_barrier)(Site site);
  // Gives this lane's value, waits for the simdgroup, returns the values of all lanes.
  const void* (*exchange)(const void* value, unsigned size, Site site);
  unsigned (*lane)();
  void* (*threadgroup_array)(unsigned long bytes, const char* name);
  // Of every access to memory, from kernels compiled to tell.
  void (*access)(const void* address, unsigned size, bool write);
};

// Where one thread stands in its launch.
struct Place {
  unsigned position_in_grid[3], position_in_group[3], group_position[3];
  unsigned threads_per_grid[3], threads_per_group[3], groups_per_grid[3];
  unsigned index_in_group, lane, simd, simds;
};

}  // namespace mpsl
