// What is not CUDA's: cuDNN is off, and the process ends in peace.
#include <unistd.h>

// at::Context::userEnabledCuDNN() const, which is torch.backends.cudnn.enabled: cuDNN calls the driver past the runtime, and would
// find none. Convolutions, batch normalisation and RNNs take their other CUDA kernels.
int _ZNK2at7Context16userEnabledCuDNNEv(const void *context) { return 0; }
int _ZNK2at7Context19userEnabledCuDNNSDPEv(const void *context) { return 0; }

// Up to Python 3.13 a thread that wants the interpreter while that is being finalized calls pthread_exit, which unwinds its stack.
// If it is autograd's thread, dropping the last graph after a backward pass, there are destructors on that stack which must not be
// left so, and the process aborts ("terminate called without an active exception"). A real GPU lets that thread be faster. As
// Python 3.14 does, let the thread wait: the process is about to end. Nothing else in Python calls pthread_exit.
void pthread_exit(void *value) {
    for (;;) pause();
}
