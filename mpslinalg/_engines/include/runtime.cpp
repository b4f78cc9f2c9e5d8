// The CPU engine. A threadgroup's threads are fibers of one OS thread; groups spread over OS threads.
// With `check` a launch runs three times, in forward, reverse and random order, on copies of its
// buffers between guard pages: whatever those runs do not agree on is a race. Kernels that tell of
// each access have races in threadgroup arrays found whatever they lead to: two threads at one
// word with no barrier between them, one of which writes, unless both write the same.

#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "fiber.h"
#include "runtime.h"

using mpsl::Place;
using mpsl::Site;

namespace {

constexpr unsigned LANES = 32;
constexpr unsigned MAX_THREADS = 1024;
constexpr unsigned MAX_BUFFERS = 31;
constexpr unsigned long MAX_GROUP_BYTES = 32768;
constexpr unsigned long STACK_BYTES = 256 * 1024;
// Unmapped on both sides of what is checked: as far as a wrong stride is likely to reach.
constexpr unsigned long GUARD_BYTES = 64ul * 1024 * 1024;
// Below this many threads of a plain kernel an OS thread costs more to start than it saves (30 us).
constexpr unsigned long PLAIN_THREADS_WORTH_SPREADING = 8192;
constexpr unsigned char PATTERN = 0x7f;  // 0x7f7f7f7f: 3.4e38 as float, far from any index as int
constexpr unsigned SIGNALLING = 0x7fa5a5a5u;  // a NaN as float, as double in pairs too

struct Buffer {
  void* data;
  unsigned long bytes;
  unsigned argument;
  unsigned writable;
  const char* name;
};

struct Launch {
  void (*thread)(void* const* arguments, const Place* place);
  void (*range)(void* const* arguments, const unsigned* threads, unsigned long begin,
                unsigned long end);
  void** arguments;
  const Buffer* buffers;
  unsigned buffer_count;
  unsigned threads[3];
  unsigned group[3];
  unsigned os_threads;
  unsigned check;
};

enum class Order { forward, reverse, random };
const char* const ORDER_NAMES[] = {"forward", "reverse", "random"};

unsigned long page_bytes() { return static_cast<unsigned long>(sysconf(_SC_PAGESIZE)); }

// `bytes` of memory against unmapped memory: at its end, or at its start.
class Guarded {
 public:
  Guarded(unsigned long bytes, bool against_end) : bytes_(bytes) {
    const unsigned long page = page_bytes();
    body_ = (bytes + page - 1) / page * page;
    body_ = body_ == 0 ? page : body_;
    base_ = static_cast<char*>(
        mmap(nullptr, body_ + 2 * GUARD_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(base_ + GUARD_BYTES, body_, PROT_READ | PROT_WRITE);
    memset(base_ + GUARD_BYTES, PATTERN, body_);
    data_ = base_ + GUARD_BYTES + (against_end ? body_ - bytes : 0);
  }
  Guarded(Guarded&& other) noexcept
      : bytes_(other.bytes_), body_(other.body_), base_(other.base_), data_(other.data_) {
    other.base_ = nullptr;
  }
  Guarded(const Guarded&) = delete;
  ~Guarded() {
    if (base_ != nullptr) munmap(base_, body_ + 2 * GUARD_BYTES);
  }
  char* data() const { return data_; }
  unsigned long bytes() const { return bytes_; }
  void make_read_only() const { mprotect(base_ + GUARD_BYTES, body_, PROT_READ); }
  // The slack of the page was filled with PATTERN and belongs to nobody.
  bool slack_untouched() const {
    const char* const begin = base_ + GUARD_BYTES;
    const char* const data = data_;
    return std::all_of(begin, data, is_pattern) &&
           std::all_of(data + bytes_, begin + body_, is_pattern);
  }
  bool owns(const char* address) const {
    return address >= base_ && address < base_ + body_ + 2 * GUARD_BYTES;
  }

 private:
  static bool is_pattern(char c) { return static_cast<unsigned char>(c) == PATTERN; }
  unsigned long bytes_, body_ = 0;
  char* base_ = nullptr;
  char* data_ = nullptr;
};

// Who came last to a word of a threadgroup array, and in which intervals between barriers: of the
// group, of the simdgroup.
struct Word {
  unsigned written = 0, written_in_simd = 0, read = 0, read_in_simd = 0;
  unsigned writer = 0, reader = 0;
  bool many_lanes = false, many_simds = false;
};

struct Array;

// A word that two threads write, and what the first made of it.
struct Overwritten {
  Array* array;
  unsigned long index;
  unsigned writer, value;
};

struct Array {
  const char* name;
  std::unique_ptr<Guarded> guarded;
  std::vector<char> plain;
  unsigned long bytes;
  std::vector<Word> words;
  char* data() { return guarded ? guarded->data() : plain.data(); }
};

enum class State : unsigned char { ready, at_simd, at_barrier, done };

struct Fiber {
  FiberContext context;
  State state;
  Site site;
  unsigned next_array;
  unsigned rounds;
  Place place;
};

struct Meeting {
  unsigned arrived;
  Site site;
};

class Stacks {
 public:
  Stacks() {
    memory_ = static_cast<char*>(mmap(nullptr, MAX_THREADS * STACK_BYTES, PROT_READ | PROT_WRITE,
                                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    // A guard page below each stack: an overflow is a fault and not another fiber's ruin.
    for (unsigned i = 0; i < MAX_THREADS; ++i) {
      mprotect(memory_ + i * STACK_BYTES, page_bytes(), PROT_NONE);
    }
  }
  char* at(unsigned i) const { return memory_ + i * STACK_BYTES; }
  bool owns(const char* p) const { return p >= memory_ && p < memory_ + MAX_THREADS * STACK_BYTES; }

  // Stacks outlive the OS threads of a launch, which are short-lived.
  static Stacks* take() {
    const std::lock_guard<std::mutex> lock(mutex());
    if (idle().empty()) return new Stacks;
    Stacks* const stacks = idle().back();
    idle().pop_back();
    return stacks;
  }
  static void give(Stacks* stacks) {
    const std::lock_guard<std::mutex> lock(mutex());
    idle().push_back(stacks);
  }

 private:
  static std::mutex& mutex() {
    static std::mutex m;
    return m;
  }
  static std::vector<Stacks*>& idle() {
    static std::vector<Stacks*> list;
    return list;
  }
  char* memory_;
};

struct Report {
  char text[768];
  std::atomic<bool> failed{false};
  bool suspected = false;
};

template <typename... Args> void fail(Report& report, const char* format, Args... args) {
  if (!report.failed.exchange(true)) snprintf(report.text, sizeof report.text, format, args...);
}

// A write that shows only after the run, beside its target. The order that has unmapped memory there
// names the thread; this stands if none does.
template <typename... Args> void suspect(Report& report, const char* format, Args... args) {
  if (report.failed || report.suspected) return;
  report.suspected = true;
  snprintf(report.text, sizeof report.text, format, args...);
}

class Group;
thread_local Group* self = nullptr;

// One OS thread's workplace: the fibers and threadgroup memory of the group that it runs.
class Group {
 public:
  Group(const Launch& launch, Order order, Report& report)
      : launch_(launch), order_(order), report_(report), random_(12345) {
    threads_ = launch.group[0] * launch.group[1] * launch.group[2];
    if (launch.thread != nullptr) {
      stacks_ = Stacks::take();
      fibers_.resize(threads_);
      slots_.resize((threads_ + LANES - 1) / LANES * 2 * LANES * mpsl::SLOT);
      simds_.resize((threads_ + LANES - 1) / LANES);
    }
    sequence_.resize(threads_);
    std::iota(sequence_.begin(), sequence_.end(), 0u);
    if (order == Order::reverse) std::reverse(sequence_.begin(), sequence_.end());
    rank_.resize(threads_);
    simd_intervals_.resize((threads_ + LANES - 1) / LANES);
  }
  ~Group() {
    if (stacks_ != nullptr) Stacks::give(stacks_);
  }

  void run(unsigned long index) {
    self = this;
    if (order_ == Order::random) std::shuffle(sequence_.begin(), sequence_.end(), random_);
    for (unsigned i = 0; i < threads_; ++i) rank_[sequence_[i]] = i;
    for (Array& array : arrays_) refill(array);
    barrier_ = {};
    interval_ += 1;
    for (Meeting& meeting : simds_) meeting = {};
    alive_ = threads_;
    for (unsigned i = 0; i < threads_; ++i) {
      Fiber& fiber = fibers_[i];
      fiber.state = State::ready;
      fiber.next_array = 0;
      fiber.rounds = 0;
      fiber.site = {};
      fiber.place = place(index, i);
      fiber_start(fiber.context, stacks_->at(i), STACK_BYTES, &Group::main);
    }
    current_ = sequence_[0];
    fiber_switch(scheduler_, fibers_[current_].context);
    for (Array& array : arrays_) {
      if (array.guarded && !array.guarded->slack_untouched()) {
        suspect(report_, "write outside the threadgroup array '%s' (%lu bytes)", array.name,
                array.bytes);
      }
    }
  }

  void barrier(Site site) {
    meet(barrier_, site, State::at_barrier, threads_, [this] {
      for (Fiber& fiber : fibers_) fiber.state = State::ready;
      interval_ += 1;
    });
  }

  void simd_barrier(Site site) {
    meet_simd(site, 1);
  }

  void access(const char* address, unsigned size, bool write) {
    settle();
    for (Array& array : arrays_) {
      const char* const data = array.data();
      if (address < data || address >= data + array.bytes) continue;
      array.words.resize((array.bytes + 3) / 4);
      const unsigned long last = std::min<unsigned long>((address - data + size - 1) / 4,
                                                         array.words.size() - 1);
      for (unsigned long w = (address - data) / 4; w <= last; ++w) touch(array, w, write);
      return;
    }
  }

  const void* exchange(const void* value, unsigned size, Site site) {
    const unsigned simd = current_ / LANES;
    // Two rounds of slots: a lane writes round r + 2 only after all have come to r + 1, so have read r.
    char* const slots =
        &slots_[(simd * 2 + (fibers_[current_].rounds++ & 1)) * LANES * mpsl::SLOT];
    memcpy(slots + current_ % LANES * mpsl::SLOT, value, size);
    // Values change hands, but what a lane wrote to memory is not yet there for the others.
    meet_simd(site, 0);
    return slots;
  }

  unsigned lane() const { return current_ % LANES; }

  void* threadgroup_array(unsigned long bytes, const char* name) {
    settle();
    const unsigned index = fibers_[current_].next_array++;
    if (index == arrays_.size()) {
      Array array{name, nullptr, {}, bytes, {}};
      if (launch_.check != 0) {
        array.guarded = std::make_unique<Guarded>(bytes, order_ != Order::reverse);
      } else {
        array.plain.resize(bytes);
      }
      refill(array);
      arrays_.push_back(std::move(array));
      unsigned long total = 0;
      for (const Array& a : arrays_) total += (a.bytes + 15) / 16 * 16;
      if (launch_.check != 0 && total > MAX_GROUP_BYTES) {
        stop("threadgroup memory: %lu bytes, and Metal has %lu (at array '%s')", total,
             MAX_GROUP_BYTES, name);
      }
    }
    return arrays_[index].data();
  }

  unsigned current() const { return current_; }
  const Place& current_place() const { return fibers_[current_].place; }
  const Array* array_at(const char* address) const {
    for (const Array& array : arrays_) {
      if (array.guarded && array.guarded->owns(address)) return &array;
    }
    return nullptr;
  }
  bool on_stack(const char* address) const { return stacks_ != nullptr && stacks_->owns(address); }

 private:
  void touch(Array& array, unsigned long index, bool write) {
    Word& word = array.words[index];
    const unsigned simd = current_ / LANES, in_simd = simd_intervals_[simd];
    const bool read_here = word.read == interval_;
    const bool read_alike = read_here && word.reader / LANES == simd && word.read_in_simd == in_simd;
    if (word.written == interval_ && word.writer != current_ &&
        (word.writer / LANES != simd || word.written_in_simd == in_simd)) {
      if (!write) race(array, index, "reads", "wrote", word.writer);
      overwritten_.push_back({&array, index, word.writer, value_at(array, index)});
    }
    if (write) {
      const bool other_simd = read_here && (word.many_simds || word.reader / LANES != simd);
      if (other_simd || (read_alike && (word.many_lanes || word.reader != current_))) {
        race(array, index, "writes", "read", word.reader);
      }
      word.written = interval_;
      word.written_in_simd = in_simd;
      word.writer = current_;
    } else {
      word.many_simds = read_here && (word.many_simds || word.reader / LANES != simd);
      word.many_lanes = read_alike && (word.many_lanes || word.reader != current_);
      word.read = interval_;
      word.read_in_simd = in_simd;
      word.reader = current_;
    }
  }

  static unsigned value_at(Array& array, unsigned long index) {
    unsigned value;
    memcpy(&value, array.data() + index * 4, sizeof value);
    return value;
  }

  // A kernel tells of a write before it: what has come of the last one shows now.
  void settle() {
    for (const Overwritten& last : overwritten_) {
      if (value_at(*last.array, last.index) != last.value) {
        race(*last.array, last.index, "writes", "wrote otherwise", last.writer);
      }
    }
    overwritten_.clear();
  }

  void race(const Array& array, unsigned long word, const char* does, const char* did,
            unsigned other) {
    const Site& site = fibers_[current_].site;
    stop("race in threadgroup array '%s' at byte %lu: thread %u %s what thread %u %s, with no "
         "barrier between (the last one: %s:%u)",
         array.name, word * 4, current_, does, other, did, site.what != nullptr ? site.file : "none",
         site.line);
  }

  void meet_simd(Site site, unsigned barriers) {
    const unsigned simd = current_ / LANES;
    meet(simds_[simd], site, State::at_simd, LANES, [this, simd, barriers] {
      simd_intervals_[simd] += barriers;
      for (unsigned i = 0; i < LANES; ++i) fibers_[simd * LANES + i].state = State::ready;
    });
  }

  static void main() {
    Group* const group = self;
    group->launch_.thread(group->launch_.arguments, &group->fibers_[group->current_].place);
    group->settle();
    group->fibers_[group->current_].state = State::done;
    group->alive_ -= 1;
    group->yield();
  }

  template <typename Release>
  void meet(Meeting& meeting, Site site, State waiting, unsigned expected, Release release) {
    settle();
    Fiber& fiber = fibers_[current_];
    fiber.site = site;
    if (meeting.arrived == 0) {
      meeting.site = site;
    } else if (meeting.site.line != site.line || strcmp(meeting.site.what, site.what) != 0) {
      stop("thread %u reached %s (%s:%u) while others of its group wait in %s (%s:%u)", current_,
           site.what, site.file, site.line, meeting.site.what, meeting.site.file,
           meeting.site.line);
    }
    meeting.arrived += 1;
    if (meeting.arrived == expected) {
      meeting.arrived = 0;
      release();
    } else {
      fiber.state = waiting;
      yield();
    }
  }

  // Goes on with the next fiber that can run; with none, back to run().
  void yield() {
    Fiber& from = fibers_[current_];
    unsigned position = rank_[current_];
    for (unsigned step = 0; step < threads_; ++step) {
      position = position + 1 == threads_ ? 0 : position + 1;
      const unsigned next = sequence_[position];
      if (fibers_[next].state == State::ready) {
        current_ = next;
        fiber_switch(from.context, fibers_[next].context);
        return;
      }
    }
    if (alive_ != 0) report_stuck();
    fiber_switch(from.context, scheduler_);
  }

  void report_stuck() {
    unsigned waiting = threads_, missing = threads_;
    for (unsigned i = threads_; i-- > 0;) {
      if (fibers_[i].state != State::done) waiting = i;
    }
    const bool simd = fibers_[waiting].state == State::at_simd;
    const unsigned begin = simd ? waiting / LANES * LANES : 0;
    const unsigned end = simd ? begin + LANES : threads_;
    for (unsigned i = end; i-- > begin;) {
      if (fibers_[i].state != fibers_[waiting].state) missing = i;
    }
    const Site& site = fibers_[waiting].site;
    const Fiber& other = fibers_[missing];
    fail(report_, "not all threads reached %s (%s:%u): thread %u waits there, thread %u %s%s",
         site.what, site.file, site.line, waiting, missing,
         other.state == State::done ? "has finished" : "waits in ",
         other.state == State::done ? "" : other.site.what);
  }

  template <typename... Args> void stop(const char* format, Args... args) {
    fail(report_, format, args...);
    fiber_switch(fibers_[current_].context, scheduler_);
  }

  static void refill(Array& array) {
    char* const data = array.data();
    for (unsigned long i = 0; i + 4 <= array.bytes; i += 4) memcpy(data + i, &SIGNALLING, 4);
  }

  Place place(unsigned long group_index, unsigned thread_index) const {
    Place p;
    unsigned long rest = group_index;
    unsigned within = thread_index;
    for (unsigned axis = 0; axis < 3; ++axis) {
      p.threads_per_grid[axis] = launch_.threads[axis];
      p.threads_per_group[axis] = launch_.group[axis];
      p.groups_per_grid[axis] = launch_.threads[axis] / launch_.group[axis];
      p.group_position[axis] = static_cast<unsigned>(rest % p.groups_per_grid[axis]);
      rest /= p.groups_per_grid[axis];
      p.position_in_group[axis] = within % launch_.group[axis];
      within /= launch_.group[axis];
      p.position_in_grid[axis] =
          p.group_position[axis] * launch_.group[axis] + p.position_in_group[axis];
    }
    p.index_in_group = thread_index;
    p.lane = thread_index % LANES;
    p.simd = thread_index / LANES;
    p.simds = (threads_ + LANES - 1) / LANES;
    return p;
  }

  const Launch& launch_;
  Order order_;
  Report& report_;
  std::mt19937 random_;
  unsigned threads_ = 0, alive_ = 0, current_ = 0;
  Stacks* stacks_ = nullptr;
  FiberContext scheduler_;
  std::vector<Fiber> fibers_;
  std::vector<char> slots_;
  std::vector<Meeting> simds_;
  Meeting barrier_{};
  std::vector<Array> arrays_;
  std::vector<unsigned> sequence_, rank_;
  unsigned interval_ = 0;
  std::vector<unsigned> simd_intervals_;
  std::vector<Overwritten> overwritten_;
};

// A kernel that asks for nothing but its position in the grid runs as a plain loop, with no group
// to meet. When it calls one of these functions all the same, this ends its launch.
struct NoGroup {
  const char* what;
};

Group& group_for(const char* what) {
  if (self == nullptr) throw NoGroup{what};
  return *self;
}

const mpsl::Runtime RUNTIME = {
    [](Site site) { group_for(site.what).barrier(site); },
    [](Site site) { group_for(site.what).simd_barrier(site); },
    [](const void* value, unsigned size, Site site) {
      return group_for(site.what).exchange(value, size, site);
    },
    [] { return self->lane(); },
    [](unsigned long bytes, const char* name) {
      return group_for("THREADGROUP_ARRAY").threadgroup_array(bytes, name);
    },
    [](const void* address, unsigned size, bool write) {
      if (self != nullptr) self->access(static_cast<const char*>(address), size, write);
    },
};

void run_range(const Launch& launch, unsigned long begin, unsigned long end, Report& report) {
  self = nullptr;
  try {
    launch.range(launch.arguments, launch.threads, begin, end);
  } catch (const NoGroup& misuse) {
    fail(report, "%s in a kernel that asks for no index of its threadgroup", misuse.what);
  }
}

unsigned long group_count(const Launch& launch) {
  unsigned long groups = 1;
  for (unsigned axis = 0; axis < 3; ++axis) groups *= launch.threads[axis] / launch.group[axis];
  return groups;
}

unsigned long thread_count(const Launch& launch) {
  return static_cast<unsigned long>(launch.threads[0]) * launch.threads[1] * launch.threads[2];
}

void run_plain(const Launch& launch, Report& report) {
  const unsigned long end = thread_count(launch);
  const unsigned workers = end < PLAIN_THREADS_WORTH_SPREADING ? 1 : launch.os_threads;
  std::vector<std::thread> threads;
  for (unsigned w = 1; w < workers; ++w) {
    threads.emplace_back([&launch, &report, end, w, workers] {
      run_range(launch, end * w / workers, end * (w + 1) / workers, report);
    });
  }
  run_range(launch, 0, end / workers, report);
  for (std::thread& t : threads) t.join();
}

void run_groups(const Launch& launch, Report& report) {
  const unsigned long groups = group_count(launch);
  const unsigned workers =
      static_cast<unsigned>(std::min<unsigned long>(launch.os_threads, groups));
  std::atomic<unsigned long> next{0};
  const auto work = [&] {
    Group group(launch, Order::forward, report);
    for (unsigned long g = next++; g < groups && !report.failed; g = next++) group.run(g);
  };
  std::vector<std::thread> threads;
  for (unsigned w = 1; w < workers; ++w) threads.emplace_back(work);
  work();
  for (std::thread& t : threads) t.join();
}

// The checked launch that runs now: signals have no other way to it. One at a time.
struct Checked {
  const Launch& launch;
  const std::vector<Guarded>& copies;
  const Group& group;
  unsigned long plain_index;
  Report& report;
  sigjmp_buf escape;
};
Checked* checked = nullptr;
std::mutex check_mutex;

void on_fault(int, siginfo_t* info, void* context) {
  if (checked == nullptr) _exit(139);
  const char* const address = static_cast<const char*>(info->si_addr);
  const char* kind = "access";
#if defined(__linux__) && defined(__x86_64__)
  kind = (static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_ERR] & 2) != 0 ? "write" : "read";
#else
  (void)context;
#endif
  const bool plain = checked->launch.thread == nullptr;
  char thread[96];
  if (plain) {
    const unsigned* const grid = checked->launch.threads;
    const unsigned long row = checked->plain_index / grid[0];
    snprintf(thread, sizeof thread, "thread (%lu, %lu, %lu) of the grid",
             checked->plain_index % grid[0], row % grid[1], row / grid[1]);
  } else {
    const Place& p = checked->group.current_place();
    snprintf(thread, sizeof thread, "thread %u of group (%u, %u, %u)", p.index_in_group,
             p.group_position[0], p.group_position[1], p.group_position[2]);
  }
  for (unsigned i = 0; i < checked->copies.size(); ++i) {
    if (checked->copies[i].owns(address)) {
      const Buffer& buffer = checked->launch.buffers[i];
      const long offset = static_cast<long>(address - checked->copies[i].data());
      const bool inside = offset >= 0 && static_cast<unsigned long>(offset) < buffer.bytes;
      fail(checked->report, "%s %s buffer '%s' (%lu bytes) at byte %ld by %s", kind,
           inside ? "to the read-only" : "out of range of", buffer.name, buffer.bytes, offset,
           thread);
      siglongjmp(checked->escape, 1);
    }
  }
  if (const Array* array = checked->group.array_at(address)) {
    fail(checked->report, "%s out of range of threadgroup array '%s' (%lu bytes) at byte %ld by %s",
         kind, array->name, array->bytes,
         static_cast<long>(address - array->guarded->data()), thread);
  } else if (checked->group.on_stack(address)) {
    fail(checked->report, "the stack of %s overflowed", thread);
  } else {
    fail(checked->report, "%s of an address that belongs to no buffer by %s", kind, thread);
  }
  siglongjmp(checked->escape, 1);
}

// Sends faults of a checked launch to on_fault, on a stack of its own, and denormals to zero.
class FaultScope {
 public:
  FaultScope() : stack_(SIGSTKSZ + 65536) {
    stack_t alternate{};
    alternate.ss_sp = stack_.data();
    alternate.ss_size = stack_.size();
    sigaltstack(&alternate, &old_stack_);
    struct sigaction action{};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigaction(SIGSEGV, &action, &old_segv_);
    sigaction(SIGBUS, &action, &old_bus_);
#if defined(__x86_64__)
    control_ = _mm_getcsr();
    _mm_setcsr(control_ | 0x8040);
#elif defined(__aarch64__)
    asm volatile("mrs %0, fpcr" : "=r"(control_));
    asm volatile("msr fpcr, %0" : : "r"(control_ | (1ul << 24)));
#endif
  }
  ~FaultScope() {
#if defined(__x86_64__)
    _mm_setcsr(control_);
#elif defined(__aarch64__)
    asm volatile("msr fpcr, %0" : : "r"(control_));
#endif
    sigaction(SIGSEGV, &old_segv_, nullptr);
    sigaction(SIGBUS, &old_bus_, nullptr);
    sigaltstack(&old_stack_, nullptr);
  }

 private:
  std::vector<char> stack_;
  stack_t old_stack_{};
  struct sigaction old_segv_ {}, old_bus_{};
#if defined(__aarch64__)
  unsigned long control_ = 0;
#else
  unsigned control_ = 0;
#endif
};

void run_in_order(const Launch& launch, Order order, Checked& state, Group& group) {
  const bool plain = launch.thread == nullptr;
  std::vector<unsigned long> sequence(plain ? thread_count(launch) : group_count(launch));
  std::iota(sequence.begin(), sequence.end(), 0ul);
  if (order == Order::reverse) std::reverse(sequence.begin(), sequence.end());
  if (order == Order::random) std::shuffle(sequence.begin(), sequence.end(), std::mt19937(54321));
  if (sigsetjmp(state.escape, 1) != 0) return;
  for (const unsigned long index : sequence) {
    if (state.report.failed) return;
    if (plain) {
      state.plain_index = index;
      run_range(launch, index, index + 1, state.report);
    } else {
      group.run(index);
    }
  }
}

bool limits_hold(const Launch& launch, Report& report) {
  const unsigned long threads =
      static_cast<unsigned long>(launch.group[0]) * launch.group[1] * launch.group[2];
  if (threads > MAX_THREADS) fail(report, "a group of %lu threads, and Metal has 1024", threads);
  if (launch.buffer_count > MAX_BUFFERS) {
    fail(report, "%u buffers, and Metal has %u", launch.buffer_count, MAX_BUFFERS);
  }
  for (unsigned i = 0; i < launch.buffer_count; ++i) {
    for (unsigned j = 0; j < launch.buffer_count; ++j) {
      const Buffer &a = launch.buffers[i], &b = launch.buffers[j];
      const char *pa = static_cast<char*>(a.data), *pb = static_cast<char*>(b.data);
      if (i != j && a.writable != 0 && pa < pb + b.bytes && pb < pa + a.bytes) {
        fail(report, "buffers '%s' and '%s' of one launch overlap", a.name, b.name);
      }
    }
  }
  return !report.failed;
}

void run_checked(Launch launch, Report& report) {
  const std::lock_guard<std::mutex> lock(check_mutex);
  void** const original = launch.arguments;
  unsigned last = 0;
  for (unsigned i = 0; i < launch.buffer_count; ++i) {
    last = std::max(last, launch.buffers[i].argument);
  }
  std::vector<Guarded> first;
  std::vector<void*> saved(original, original + last + 1);
  for (const Order order : {Order::forward, Order::reverse, Order::random}) {
    const char* const order_name = ORDER_NAMES[static_cast<int>(order)];
    std::vector<Guarded> copies;
    for (unsigned i = 0; i < launch.buffer_count; ++i) {
      const Buffer& buffer = launch.buffers[i];
      copies.emplace_back(buffer.bytes, order != Order::reverse);
      memcpy(copies[i].data(), buffer.data, buffer.bytes);
      if (buffer.writable == 0) copies[i].make_read_only();
      original[buffer.argument] = copies[i].data();
    }
    {
      Group group(launch, order, report);
      Checked state{launch, copies, group, 0, report, {}};
      checked = &state;
      const FaultScope faults;
      run_in_order(launch, order, state, group);
      checked = nullptr;
    }
    for (unsigned i = 0; i < launch.buffer_count && !report.failed; ++i) {
      const Buffer& buffer = launch.buffers[i];
      if (!copies[i].slack_untouched()) {
        suspect(report, "write outside buffer '%s' (%lu bytes)", buffer.name, buffer.bytes);
      } else if (order != Order::forward && buffer.writable != 0) {
        const auto differ = std::mismatch(copies[i].data(), copies[i].data() + buffer.bytes,
                                          first[i].data());
        if (differ.first != copies[i].data() + buffer.bytes) {
          fail(report, "race: buffer '%s' differs at byte %ld between forward and %s order",
               buffer.name, static_cast<long>(differ.first - copies[i].data()), order_name);
        }
      }
    }
    if (report.failed) break;
    if (order == Order::forward) first = std::move(copies);
  }
  for (unsigned i = 0; i <= last && launch.buffer_count != 0; ++i) original[i] = saved[i];
  report.failed = report.failed || report.suspected;
  if (report.failed) return;
  for (unsigned i = 0; i < launch.buffer_count; ++i) {
    const Buffer& buffer = launch.buffers[i];
    if (buffer.writable != 0) memcpy(buffer.data, first[i].data(), buffer.bytes);
  }
}

}  // namespace

extern "C" const mpsl::Runtime* mpsl_table() { return &RUNTIME; }

// Returns 0, or 1 with the reason in `message`.
extern "C" int mpsl_launch(const Launch* launch, char* message, unsigned long message_bytes) {
  Report report;
  if (launch->check != 0) {
    if (limits_hold(*launch, report)) run_checked(*launch, report);
  } else if (launch->thread != nullptr) {
    run_groups(*launch, report);
  } else {
    run_plain(*launch, report);
  }
  if (!report.failed) return 0;
  snprintf(message, message_bytes, "%s", report.text);
  return 1;
}
