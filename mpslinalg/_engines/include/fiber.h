// A switch between stacks. fiber_start() prepares a stack that enters `entry` at its first switch.

#if defined(__x86_64__) || defined(__aarch64__)

extern "C" void mpsl_switch(void** save, void* load) asm("mpsl_switch");

#if defined(__x86_64__)
asm(R"(
.text
.p2align 4
mpsl_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");
constexpr unsigned SAVED = 6, RETURN_SLOT = 6, FRAME = 8;  // in words; the entry sees a call's alignment
#else
asm(R"(
.text
.p2align 4
mpsl_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
)");
constexpr unsigned SAVED = 20, RETURN_SLOT = 11, FRAME = 20;
#endif

struct FiberContext {
  void* stack = nullptr;
};

inline void fiber_start(FiberContext& context, char* stack, unsigned long bytes, void (*entry)()) {
  void** frame = reinterpret_cast<void**>(stack + bytes) - FRAME;
  for (unsigned i = 0; i < FRAME; ++i) frame[i] = nullptr;
  frame[RETURN_SLOT] = reinterpret_cast<void*>(entry);
  context.stack = frame;
}

inline void fiber_switch(FiberContext& from, const FiberContext& to) {
  mpsl_switch(&from.stack, to.stack);
}

#else
#include <ucontext.h>

struct FiberContext {
  ucontext_t context;
};

inline void fiber_start(FiberContext& fiber, char* stack, unsigned long bytes, void (*entry)()) {
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = stack;
  fiber.context.uc_stack.ss_size = bytes;
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, entry, 0);
}

inline void fiber_switch(FiberContext& from, const FiberContext& to) {
  swapcontext(&from.context, &to.context);
}
#endif
