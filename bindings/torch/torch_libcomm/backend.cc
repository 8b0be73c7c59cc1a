/* The native layer: a c10d::Backend over libcomm, so that PyTorch's own ProcessGroup can hold it beside other backends
 * ("cpu:libcomm,cuda:nccl"). Compiled by build.py for the PyTorch that is installed, 2.1 or newer. Methods whose names
 * differ between releases are here under each of their names, and so without `override`.
 *
 * libcomm's functions are not linked: build.py loads the library first, for all to see.
 */
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <regex>
#include <set>
#include <thread>
#include <unordered_map>

#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include <comm/comm.h>
#include <comm/store.h>

namespace {

using at::Tensor;
using c10::intrusive_ptr;
using milliseconds = std::chrono::milliseconds;
using Tensors = std::vector<Tensor>;
using Future = c10::ivalue::Future;

/* ---- Errors and time limits ---- */

/* A time limit has PyTorch's words, for programs that look for them. */
std::runtime_error failure(comm_status status, const std::string &text, int64_t timeout_ms = 0)
{
    std::string words = "libcomm: ";
    if (status == COMM_ERR_TIMEOUT || status == COMM_ERR_DEADLINE) {
        words += "Operation Timed out";
        words += timeout_ms > 0 ? " waiting " + std::to_string(timeout_ms) + "ms: " : ": ";
    }
    return std::runtime_error(words + text);
}

void check(comm_status status, int64_t timeout_ms = 0)
{
    if (status != COMM_OK)
        throw failure(status, comm_last_error(), timeout_ms);
}

/* libcomm's text about the last part of a wait as one about the whole wait. */
std::string of_whole_wait(std::string text, int64_t waited_ms)
{
    const std::string before = "timed out after ";
    size_t found = text.rfind(before);
    if (found == std::string::npos)
        return text;
    size_t number = found + before.size();
    return text.replace(number, std::min(text.find(' ', number), text.size()) - number, std::to_string(waited_ms));
}

/* PyTorch's unset limit is negative; 0 is as short as can be. libcomm's 0 is the group's. */
int64_t limit_of(milliseconds timeout)
{
    return timeout.count() < 0 ? 0 : std::max<int64_t>(timeout.count(), 1);
}

/* Whether the caller waits for the operation right away. Releases that do not say so wait for the work. */
template <class Options> auto waits(const Options &options, int) -> decltype(!options.asyncOp)
{
    return !options.asyncOp;
}
template <class Options> bool waits(const Options &, long)
{
    return false;
}

/* The name that a new group is to have; older releases do not say it. */
template <class Options> auto name_of(const Options &options, int) -> decltype(options.group_name)
{
    return options.group_name;
}
template <class Options> std::string name_of(const Options &, long)
{
    return "";
}

/* As libcomm takes it. */
std::string fitting(std::string name)
{
    name.resize(std::min<size_t>(name.size(), 95));
    for (char &letter : name)
        if (letter < ' ' || letter > '~')
            letter = '_';
    return name;
}

/* ---- Threads that complete futures ---- */

/* What C++ chains to a future may wait for other operations and their futures. So there are as many threads as wait at
 * a time; never are they libcomm's, which move the data. What Python chains runs elsewhere (futures.py). */
class Pool {
public:
    void run(std::function<void()> task)
    {
        std::lock_guard<std::mutex> lock(mutex_);
        tasks_.push_back(std::move(task));
        if (tasks_.size() > idle_)
            std::thread([this] { serve(); }).detach();
        else
            wake_.notify_one();
    }

private:
    void serve()
    {
        std::unique_lock<std::mutex> lock(mutex_);
        for (;;) {
            idle_++;
            bool found = wake_.wait_for(lock, std::chrono::seconds(10), [this] { return !tasks_.empty(); });
            idle_--;
            if (!found)
                return;
            std::function<void()> task = std::move(tasks_.front());
            tasks_.pop_front();
            lock.unlock();
            task();
            task = nullptr;
            lock.lock();
        }
    }

    std::mutex mutex_;
    std::condition_variable wake_;
    std::deque<std::function<void()>> tasks_;
    size_t idle_ = 0;
};

Pool *current_pool = new Pool; /* its threads may outlive main */

Pool &pool()
{
    return *current_pool;
}

/* ---- Signals ---- */

constexpr int64_t SIGNAL_CHECK_MS = 100; /* how long a thread that waits may leave them alone */

thread_local bool has_been_forked = false; /* then this thread is the main one of its process */

bool on_main_thread()
{
    thread_local const bool main_thread = syscall(SYS_gettid) == getpid();
    return main_thread || has_been_forked;
}

/* Python runs the handlers of signals on its main thread, when that one asks. What they raise is thrown. */
void check_signals()
{
    if (!on_main_thread())
        return;
    py::gil_scoped_acquire acquire;
    if (PyErr_CheckSignals())
        throw py::error_already_set();
}

/* A function of libcomm's that waits looks for no signals. So Ctrl-C ends the group for which the main thread waits;
 * then the function returns, and KeyboardInterrupt is raised. This holds while SIGINT means that: signal.signal() takes
 * our handler away, and create() brings it back (__init__.py). */
class Interrupts {
public:
    /* Call it: function(), which waits for `group`. */
    template <class Function> static comm_status interruptible(comm_group *group, Function function)
    {
        if (!on_main_thread())
            return function();
        static uint64_t calls = 0;
        awaited_ = group;
        call_.store(++calls);
        Waiting waiting;
        check_earlier_signals();
        return function();
    }

    static void listen()
    {
        if (!listening_) { /* under Python's lock */
            sem_init(&signalled_, 0, 0);
            std::thread(serve).detach();
            listening_ = true;
        }
        struct sigaction current;
        sigaction(SIGINT, nullptr, &current);
        if (current.sa_sigaction == handle || current.sa_handler == SIG_DFL || current.sa_handler == SIG_IGN)
            return;
        python_ = current;
        current.sa_sigaction = handle;
        current.sa_flags |= SA_SIGINFO;
        sigaction(SIGINT, &current, nullptr);
    }

    /* The child of a fork has no thread that serves, and no call that waits. */
    static void begin_again()
    {
        listening_ = false;
        call_.store(0);
        new (&ending_) std::mutex;
    }

private:
    struct Waiting {
        ~Waiting()
        {
            if (call_.exchange(0) == 0)
                std::lock_guard<std::mutex> ended(ending_); /* the abort has returned */
        }
    };

    /* One that came after Python last looked for signals, and before there was a call to end, would be heard only when
     * the call has returned. Either `handle` sees the call, or the signal is counted here. */
    static void check_earlier_signals()
    {
        static uint64_t seen = 0;
        uint64_t signals = signals_.load();
        if (signals == seen)
            return;
        seen = signals;
        check_signals();
    }

    static void handle(int number, siginfo_t *info, void *context)
    {
        if (python_.sa_flags & SA_SIGINFO)
            python_.sa_sigaction(number, info, context);
        else
            python_.sa_handler(number);
        signals_++;
        uint64_t call = call_.load();
        if (call) {
            signalled_call_.store(call);
            sem_post(&signalled_);
        }
    }

    /* A call that was about to return does so first. */
    static void serve()
    {
        for (;;) {
            if (sem_wait(&signalled_) != 0)
                continue;
            std::this_thread::sleep_for(milliseconds(SIGNAL_CHECK_MS));
            std::lock_guard<std::mutex> lock(ending_);
            uint64_t call = signalled_call_.load();
            if (call_.compare_exchange_strong(call, 0))
                comm_group_abort(awaited_, "KeyboardInterrupt");
        }
    }

    static inline std::atomic<uint64_t> call_ { 0 }, signalled_call_ { 0 }; /* numbers of calls; 0: none */
    static inline std::atomic<uint64_t> signals_ { 0 };                     /* that have come */
    static inline bool listening_ = false;
    static inline comm_group *awaited_;                                     /* by the call */
    static inline std::mutex ending_;
    static inline sem_t signalled_;
    static inline struct sigaction python_;
};

/* ---- Forks ---- */

/* The child of a fork has none of the parent's threads. The pool counts those that wait for tasks, and one of them may
 * have locked it. */
void begin_again_in_child()
{
    has_been_forked = true;
    current_pool = new Pool;
    Interrupts::begin_again();
}

/* ---- Works ---- */

/* What an operation reads and writes: kept until it is done; then pieces are copied to where they belong. */
struct Job {
    c10d::OpType type;
    const char *title;
    Tensors outputs;
    std::vector<Tensors> lists; /* the outputs of an operation that has a list for each input */
    Tensors keep;
    std::vector<std::pair<Tensor, Tensor>> copies;
};

class CommWork : public c10d::Work {
public:
    /* `inputs` are what profilers are told; without a title, nothing. `group` tells one backend from another. */
    CommWork(int rank, Job job, const char *title, const Tensors &inputs, uintptr_t group)
        : Work(rank, job.type, title, inputs), job_(std::move(job)), group_(group)
    {
    }

    uintptr_t group() const
    {
        return group_;
    }

    bool collective() const
    {
        return job_.type != c10d::OpType::SEND && job_.type != c10d::OpType::RECV &&
               job_.type != c10d::OpType::RECVANYSOURCE;
    }

    /* An operation under way goes on without its work, and needs its memory until it has ended. */
    ~CommWork() override
    {
        if (handle_ && comm_work_status(handle_) == COMM_IN_PROGRESS) {
            auto *left = new Job(std::move(job_));
            if (comm_work_on_complete(handle_, forget, left) != COMM_OK)
                delete left;
        }
        comm_work_release(handle_);
    }

    /* One without a handle is done. */
    void begun(comm_work *handle)
    {
        handle_ = handle;
        open_ = false;
        if (recordFunctionEndCallback_)
            watch();
    }

    /* It has been waited for, and no other thread knows it yet. */
    void done()
    {
        open_ = false;
        if (!job_.copies.empty() || recordFunctionEndCallback_)
            conclude();
        over_ = true;
    }

    /* Operations are added to it: a batch. */
    void open()
    {
        open_ = true;
    }

    void add(Job job)
    {
        for (auto *tensors : { &job.outputs, &job.keep })
            job_.keep.insert(job_.keep.end(), tensors->begin(), tensors->end());
        for (const auto &list : job.lists)
            job_.keep.insert(job_.keep.end(), list.begin(), list.end());
        job_.copies.insert(job_.copies.end(), job.copies.begin(), job.copies.end());
    }

    void conclude()
    {
        std::call_once(concluded_, [this] {
            at::NoGradGuard no_grad;
            for (auto &copy : job_.copies)
                copy.first.copy_(copy.second);
            job_.copies.clear();
            job_.keep.clear();
            finish();
        });
    }

    bool isCompleted() override
    {
        if (over_)
            return true;
        if (!handle_)
            return !open_;
        int32_t done = 0;
        if (comm_work_test(handle_, &done) == COMM_OK && done)
            conclude();
        return done != 0;
    }

    bool isSuccess() const override
    {
        return !open_ && (!handle_ || comm_work_status(handle_) == COMM_OK);
    }

    std::exception_ptr exception() const override
    {
        comm_status status = handle_ ? comm_work_status(handle_) : COMM_OK;
        return status == COMM_OK || status == COMM_IN_PROGRESS ? nullptr : std::make_exception_ptr(error());
    }

    int sourceRank() const override
    {
        return handle_ ? comm_work_source_rank(handle_) : -1;
    }

    Tensors result() override
    {
        return job_.outputs;
    }

    bool wait(milliseconds timeout) override
    {
        if (over_)
            return true;
        if (open_)
            throw std::runtime_error(
                "libcomm: an operation of a batch cannot be waited for before the batch has ended");
        if (handle_)
            await(timeout.count());
        conclude();
        return true;
    }

    void synchronize() override
    {
        wait(milliseconds(0));
    }

    intrusive_ptr<Future> getFuture() override
    {
        std::unique_lock<std::mutex> lock(future_mutex_);
        if (future_)
            return future_;
        auto element = c10::TensorType::get();
        auto list = c10::ListType::create(element);
        future_ = c10::make_intrusive<Future>(job_.lists.empty() ? list : c10::ListType::create(list));
        auto future = future_;
        bool told = told_ || !handle_;
        lock.unlock();
        if (told)
            complete(future);
        else
            watch();
        return future;
    }

    uint64_t getSequencenumber() const
    {
        return handle_ ? comm_work_seq(handle_) : 0;
    }

    float getDuration() const
    {
        return handle_ ? static_cast<float>(comm_work_duration_ns(handle_)) / 1e6f : 0;
    }

private:
    std::runtime_error error() const
    {
        return failure(comm_work_status(handle_), comm_work_error(handle_), comm_work_timeout(handle_));
    }

    /* 0 is no limit. What a signal's handler in Python raises ends the wait, and the operation goes on. */
    void await(int64_t timeout_ms)
    {
        for (int64_t waited = 0;;) {
            int64_t part = timeout_ms > 0 ? std::min(timeout_ms - waited, SIGNAL_CHECK_MS) : SIGNAL_CHECK_MS;
            comm_status status = comm_work_wait(handle_, part);
            comm_status ended = comm_work_status(handle_); /* perhaps after the wait's time was over */
            if (ended == COMM_OK)
                return;
            if (ended != COMM_IN_PROGRESS)
                throw error();
            waited += part;
            if (status != COMM_ERR_TIMEOUT || (timeout_ms > 0 && waited >= timeout_ms))
                throw failure(status, of_whole_wait(comm_last_error(), waited), timeout_ms);
            check_signals();
        }
    }

    /* Be told of the end; once. */
    void watch()
    {
        std::call_once(watched_, [this] {
            auto *self = new intrusive_ptr<CommWork>(intrusive_ptr<CommWork>::reclaim_copy(this));
            check(comm_work_on_complete(handle_, ended, self));
        });
    }

    /* To free a tensor may take Python's lock: not on a thread of libcomm's. */
    static void forget(comm_work *, comm_status, void *context)
    {
        auto *left = static_cast<Job *>(context);
        pool().run([left] { delete left; });
    }

    static void ended(comm_work *, comm_status, void *context)
    {
        auto *self = static_cast<intrusive_ptr<CommWork> *>(context);
        pool().run([self] {
            (*self)->tell();
            delete self;
        });
    }

    void tell()
    {
        std::unique_lock<std::mutex> lock(future_mutex_);
        told_ = true;
        auto future = future_;
        lock.unlock();
        if (future)
            complete(future);
        else if (comm_work_status(handle_) == COMM_OK)
            conclude();
        else
            finish(exception());
    }

    void complete(const intrusive_ptr<Future> &future)
    {
        try {
            if (auto failed = exception())
                std::rethrow_exception(failed);
            conclude();
        } catch (...) {
            finish(std::current_exception());
            future->setError(std::current_exception());
            return;
        }
        future->markCompleted(job_.lists.empty() ? at::IValue(job_.outputs) : at::IValue(job_.lists));
    }

    Job job_;
    uintptr_t group_;
    comm_work *handle_ = nullptr;
    bool open_ = false;
    bool over_ = false;
    std::once_flag concluded_, watched_;
    std::mutex future_mutex_;
    intrusive_ptr<Future> future_;
    bool told_ = false;
};

/* ---- The store ---- */

/* A store of PyTorch's as a comm_store. No exception may go through C: it becomes a status and a text. */
struct TorchStore {
    intrusive_ptr<c10d::Store> store;

    template <class Call> static comm_status guard(void *context, char *error, size_t capacity, Call call)
    {
        try {
            return call(*static_cast<TorchStore *>(context)->store);
        } catch (const std::exception &problem) {
            snprintf(error, capacity, "%s", problem.what());
            return COMM_ERR_SYSTEM;
        }
    }

    static std::vector<uint8_t> bytes(const void *data, size_t size)
    {
        auto *begin = static_cast<const uint8_t *>(data);
        return std::vector<uint8_t>(begin, begin + size);
    }

    static comm_status give(const std::vector<uint8_t> &value, void **ret_data, size_t *ret_bytes)
    {
        *ret_data = comm_alloc(value.size() + 1);
        if (!*ret_data)
            return COMM_ERR_NO_MEMORY;
        std::copy(value.begin(), value.end(), static_cast<uint8_t *>(*ret_data));
        *ret_bytes = value.size();
        return COMM_OK;
    }

    static comm_status set(void *context, const char *key, const void *data, size_t size, char *error, size_t capacity)
    {
        return guard(context, error, capacity, [&](c10d::Store &store) {
            store.set(key, bytes(data, size));
            return COMM_OK;
        });
    }

    static comm_status get(void *context, const char *key, int64_t timeout_ms, void **ret_data, size_t *ret_bytes,
                           char *error, size_t capacity)
    {
        return guard(context, error, capacity, [&](c10d::Store &store) -> comm_status {
            auto deadline = std::chrono::steady_clock::now() + milliseconds(timeout_ms);
            auto pause = std::chrono::microseconds(500);
            while (!store.check({ key })) {
                if (std::chrono::steady_clock::now() > deadline)
                    return COMM_ERR_TIMEOUT;
                std::this_thread::sleep_for(pause);
                pause = std::min(pause * 2, std::chrono::microseconds(20000));
            }
            return give(store.get(key), ret_data, ret_bytes);
        });
    }

    static comm_status add(void *context, const char *key, int64_t amount, int64_t *ret_value, char *error,
                           size_t capacity)
    {
        return guard(context, error, capacity, [&](c10d::Store &store) {
            *ret_value = store.add(key, amount);
            return COMM_OK;
        });
    }

    static comm_status compare_set(void *context, const char *key, const void *expected, size_t expected_size,
                                   const void *desired, size_t desired_size, void **ret_data, size_t *ret_bytes,
                                   char *error, size_t capacity)
    {
        return guard(context, error, capacity, [&](c10d::Store &store) {
            return give(store.compareSet(key, bytes(expected, expected_size), bytes(desired, desired_size)), ret_data,
                        ret_bytes);
        });
    }

    static comm_status has(void *context, const char *const *keys, size_t count, int32_t *ret_all, char *error,
                           size_t capacity)
    {
        return guard(context, error, capacity, [&](c10d::Store &store) {
            *ret_all = store.check(std::vector<std::string>(keys, keys + count));
            return COMM_OK;
        });
    }

    static comm_status remove(void *context, const char *key, int32_t *ret_existed, char *error, size_t capacity)
    {
        return guard(context, error, capacity, [&](c10d::Store &store) {
            bool existed = store.deleteKey(key);
            if (ret_existed)
                *ret_existed = existed;
            return COMM_OK;
        });
    }

    static void close(void *context)
    {
        delete static_cast<TorchStore *>(context);
    }

    static comm_store *open(intrusive_ptr<c10d::Store> store)
    {
        comm_store_ops ops = {};
        ops.struct_bytes = sizeof ops;
        ops.name = "torch";
        ops.set = set;
        ops.get = get;
        ops.add = add;
        ops.compare_set = compare_set;
        ops.check = has;
        ops.remove = remove;
        ops.close = close;
        auto context = std::make_unique<TorchStore>(TorchStore { std::move(store) });
        comm_store *made;
        check(comm_store_create(&ops, context.get(), &made));
        context.release();
        return made;
    }
};

/* ---- Tensors ---- */

/* Types that older releases do not have go by their names. */
comm_dtype newer_dtype_of(const Tensor &tensor)
{
    static const std::unordered_map<std::string, comm_dtype> newer = {
        { "UInt16", COMM_DTYPE_U16 },           { "UInt32", COMM_DTYPE_U32 },
        { "UInt64", COMM_DTYPE_U64 },           { "Float8_e4m3fn", COMM_DTYPE_F8E4M3 },
        { "Float8_e5m2", COMM_DTYPE_F8E5M2 },
    };
    auto found = newer.find(c10::toString(tensor.scalar_type()));
    if (found == newer.end())
        throw std::runtime_error(std::string("libcomm: there is no dtype for ") + c10::toString(tensor.scalar_type()));
    return found->second;
}

comm_dtype dtype_of(const Tensor &tensor)
{
    switch (tensor.scalar_type()) {
    case at::kChar: return COMM_DTYPE_I8;
    case at::kByte: return COMM_DTYPE_U8;
    case at::kShort: return COMM_DTYPE_I16;
    case at::kInt: return COMM_DTYPE_I32;
    case at::kLong: return COMM_DTYPE_I64;
    case at::kBool: return COMM_DTYPE_BOOL;
    case at::kHalf: return COMM_DTYPE_F16;
    case at::kBFloat16: return COMM_DTYPE_BF16;
    case at::kFloat: return COMM_DTYPE_F32;
    case at::kDouble: return COMM_DTYPE_F64;
    case at::kComplexFloat: return COMM_DTYPE_C64;
    case at::kComplexDouble: return COMM_DTYPE_C128;
    default: return newer_dtype_of(tensor);
    }
}

enum class Use { READ, WRITTEN, IN_PLACE };

bool is_expanded(const Tensor &tensor, int64_t dimension)
{
    return tensor.stride(dimension) == 0 && tensor.size(dimension) > 1;
}

/* Have the piece copied to the tensor. One that is expanded has several elements in one place of memory. They have been
 * equal, and are after an operation in place: one of them is copied. What else is written there need not be equal. */
void copy_back(const Tensor &tensor, const Tensor &piece, Job &job, Use use)
{
    Tensor target = tensor, source = piece;
    for (int64_t i = 0; i < tensor.dim(); i++) {
        if (!is_expanded(tensor, i))
            continue;
        if (use != Use::IN_PLACE)
            throw std::runtime_error("libcomm: an output is an expanded tensor: it has several elements in one place "
                                     "of memory, and each is to be written. Give clone() of it");
        target = target.narrow(i, 0, 1);
        source = source.narrow(i, 0, 1);
    }
    job.copies.emplace_back(target, source);
}

/* The tensor in one piece. The memory of one that is lazily negated or conjugated has other values than those that are
 * read. */
Tensor flat(const Tensor &tensor, Job &job, Use use)
{
    if (!tensor.device().is_cpu())
        throw std::runtime_error("libcomm: a tensor on " + tensor.device().str() +
                                 "; this backend serves the CPU. A group for both is 'cpu:libcomm,cuda:nccl'");
    if (tensor.layout() != at::kStrided)
        throw std::runtime_error("libcomm: a sparse tensor; those can be all-reduced only");
    if (tensor.is_contiguous() && !tensor.is_neg() && !tensor.is_conj()) {
        job.keep.push_back(tensor);
        return tensor;
    }
    Tensor piece = tensor.resolve_conj().resolve_neg().contiguous();
    job.keep.push_back(piece);
    if (use != Use::READ)
        copy_back(tensor, piece, job, use);
    return piece;
}

const Tensor &only(const Tensors &tensors)
{
    if (tensors.size() != 1)
        throw std::runtime_error("libcomm: one tensor per rank, not " + std::to_string(tensors.size()));
    return tensors[0];
}

/* ---- Sizes and types ---- */

std::string number_of(int64_t count, const std::string &noun)
{
    return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

/* libcomm is told a count and a dtype for some of a call's tensors, and takes the others to be as large as follows from
 * that. So each call looks at all of them before it is submitted: one that is refused takes no number. */
struct Checks {
    const char *call;
    int rank, size;

    [[noreturn]] void refuse(const std::string &text) const
    {
        throw std::runtime_error("libcomm: " + std::string(call) + ": " + text);
    }

    void type(const std::string &name, const Tensor &tensor, const std::string &other_name, const Tensor &other) const
    {
        if (tensor.scalar_type() != other.scalar_type())
            refuse("the " + name + " is of dtype " + c10::toString(tensor.scalar_type()) + ", the " + other_name +
                   " of " + c10::toString(other.scalar_type()) + "; both need the same one");
    }

    /* One tensor that has a part for each rank. */
    void whole(const std::string &name, const Tensor &tensor, const std::string &part_name, const Tensor &part) const
    {
        type(name, tensor, part_name, part);
        if (tensor.numel() != part.numel() * size)
            refuse("the " + name + " has " + number_of(tensor.numel(), "element") + "; " + number_of(size, "rank") +
                   " with " + std::to_string(part.numel()) + " each need " + std::to_string(part.numel() * size));
    }

    template <class Items> void length(const std::string &name, const Items &list) const
    {
        if (list.size() != static_cast<size_t>(size))
            refuse("the " + name + " list has " + number_of(list.size(), "tensor") + "; a group of " +
                   number_of(size, "rank") + " needs " + std::to_string(size));
    }

    /* A tensor for each rank. `own` is the other end of this rank's. */
    void list(const std::string &name, const Tensors &tensors, const std::string &own_name, const Tensor &own) const
    {
        length(name, tensors);
        for (size_t i = 0; i < tensors.size(); i++)
            type(name + " for rank " + std::to_string(i), tensors[i], own_name, own);
        if (tensors[rank].numel() != own.numel())
            refuse("the " + name + " for rank " + std::to_string(rank) + ", this one, has " +
                   number_of(tensors[rank].numel(), "element") + "; the " + own_name + " has " +
                   std::to_string(own.numel()) + ", and they must be equal");
    }

    const Tensors &only_list(const std::string &name, const std::vector<Tensors> &lists) const
    {
        if (lists.size() != 1)
            refuse("one " + name + " list per rank is needed, not " + std::to_string(lists.size()));
        return lists[0];
    }

    template <class One, class Other>
    void as_many(const std::string &name, const One &list, const std::string &other_name, const Other &other) const
    {
        if (list.size() != other.size())
            refuse("the " + name + " list has " + number_of(list.size(), "tensor") + ", the " + other_name + " list " +
                   std::to_string(other.size()) + "; they must be equal");
    }

    /* Rows per rank as elements per rank. */
    std::vector<size_t> splits(const std::string &name, const Tensor &tensor, const std::vector<int64_t> &given) const
    {
        if (tensor.dim() == 0)
            refuse("the " + name + " has no dimension that could be split");
        int64_t rows = tensor.size(0), sum = 0;
        std::vector<int64_t> used = given;
        if (used.empty()) {
            if (rows % size)
                refuse("the " + name + " has " + number_of(rows, "row") + ", which cannot be divided by " +
                       number_of(size, "rank"));
            used.assign(size, rows / size);
        }
        std::vector<size_t> counts;
        for (int64_t split : used) {
            if (split < 0 || split > rows - sum)
                refuse("the " + name + " has " + number_of(rows, "row") + "; a split of " + std::to_string(split) +
                       " after " + std::to_string(sum) + " does not fit");
            counts.push_back(static_cast<size_t>(rows ? split * (tensor.numel() / rows) : 0));
            sum += split;
        }
        if (sum != rows || used.size() != static_cast<size_t>(size))
            refuse("the " + name + " has " + number_of(rows, "row") + " for " + number_of(size, "rank") + "; " +
                   number_of(used.size(), "split") + " of " + std::to_string(sum) + " together do not fit");
        return counts;
    }
};

/* What the ranks must tell each other of a sparse tensor before they can sum them: how many elements it has, and what
 * must be equal on all of them. */
struct SparseForm {
    static constexpr size_t FIXED = 4, DIMENSIONS = 60;
    std::vector<int64_t> numbers;

    SparseForm(const Checks &checks, const Tensor &tensor)
        : numbers { tensor._nnz(), dtype_of(tensor), tensor.sparse_dim(), tensor.dim() }
    {
        if (tensor.dim() > static_cast<int64_t>(DIMENSIONS))
            checks.refuse("a sparse tensor of more than " + std::to_string(DIMENSIONS) + " dimensions");
        numbers.insert(numbers.end(), tensor.sizes().begin(), tensor.sizes().end());
        numbers.resize(FIXED + DIMENSIONS);
    }

    explicit SparseForm(const Tensor &told) : numbers(told.data_ptr<int64_t>(), told.data_ptr<int64_t>() + told.numel())
    {
    }

    bool fits(const SparseForm &other) const
    {
        return std::equal(numbers.begin() + 1, numbers.end(), other.numbers.begin() + 1);
    }

    std::string words() const
    {
        std::vector<int64_t> shape(numbers.begin() + FIXED, numbers.begin() + FIXED + numbers[3]);
        return "the shape " + c10::str(at::IntArrayRef(shape)) + " with " +
               number_of(numbers[2], "sparse dimension") + " and dtype " +
               comm_dtype_name(static_cast<comm_dtype>(numbers[1]));
    }
};

/* One piece per rank, as a _list form of libcomm takes them. */
struct List {
    std::vector<void *> addresses;
    std::vector<size_t> counts;

    List(const Tensors &tensors, Job &job, Use use)
    {
        for (const Tensor &tensor : tensors) {
            Tensor piece = flat(tensor, job, use);
            addresses.push_back(piece.data_ptr());
            counts.push_back(static_cast<size_t>(piece.numel()));
        }
    }
};

/* Sends and receives have no options of PyTorch's. */
struct Call {
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    bool collective = false, wait = false;

    Call() = default;
    template <class Options> explicit Call(const Options &given) : collective(true), wait(waits(given, 0))
    {
        options.timeout_ms = limit_of(given.timeout);
    }
};

/* The number of a ReduceOp; PREMUL_SUM brings its factor. */
comm_redop redop_of(const c10d::ReduceOp &op, const Tensor &tensor, Call &call, Job &job)
{
    if (op.op_ == c10d::ReduceOp::PREMUL_SUM) {
        auto *supplement = static_cast<const c10d::NCCLPreMulSumSupplement *>(op.supplement_.get());
        Tensor factor = supplement->tensor_factor.defined()
                            ? supplement->tensor_factor.to(tensor.options()).contiguous()
                            : at::full({ 1 }, supplement->double_factor, tensor.options());
        call.options.premul = factor.data_ptr();
        job.keep.push_back(factor);
    }
    return static_cast<comm_redop>(op.op_);
}

/* ---- Channels ---- */

/* What is chained to futures runs on threads of level 1 and above (futures.py); its collectives are not ordered among
 * those of the program, and go to a channel of that level. */
thread_local size_t thread_level = 0;

struct Channel {
    explicit Channel(comm_group *of) : group(of)
    {
    }

    bool in_batch() const
    {
        return batch_thread == std::this_thread::get_id();
    }

    comm_group *group;
    intrusive_ptr<CommWork> batch;
    std::atomic<std::thread::id> batch_thread { std::thread::id() };
};

/* ---- The backend ---- */

class CommBackend;
std::mutex backends_mutex;
std::set<CommBackend *> backends; /* those that are open: they are closed before the interpreter ends */

class CommBackend : public c10d::Backend {
public:
    using Lists = std::vector<Tensors>;
    using WorkPointer = intrusive_ptr<c10d::Work>;

    /* The second channel is made now: the ranks must make groups of the same ranks in one order. */
    CommBackend(comm_group *group, const std::shared_ptr<comm_store> &store, const std::string &name)
        : Backend(comm_group_rank(group), comm_group_size(group)), first_(group), store_(store), name_(name),
          options_(c10::make_intrusive<Options>("libcomm", milliseconds(comm_group_timeout(group))))
    {
        chained(1);
        std::lock_guard<std::mutex> lock(backends_mutex);
        backends.insert(this);
    }

    ~CommBackend() override
    {
        if (PyGILState_Check()) {
            py::gil_scoped_release release;
            close();
        } else {
            close();
        }
    }

    void close()
    {
        {
            std::lock_guard<std::mutex> lock(backends_mutex);
            backends.erase(this);
        }
        for (auto &channel : chained_)
            comm_group_close(std::exchange(channel.group, nullptr));
        comm_group_close(std::exchange(first_.group, nullptr));
        store_.reset();
    }

    bool is_open() const
    {
        return first_.group;
    }

    /* ---- What PyTorch asks a backend ---- */

    const std::string getBackendName() const override
    {
        return "libcomm";
    }

    intrusive_ptr<Options> getBackendOptions()
    {
        return options_;
    }

    bool supportsCoalescing() const
    {
        return true;
    }

    bool supportsSplitting() const
    {
        return true;
    }

    bool supportsShrinking() const
    {
        return true;
    }

    void setTimeout(milliseconds timeout)
    {
        check(comm_group_set_timeout(open(), limit_of(timeout)));
        std::lock_guard<std::mutex> lock(chained_mutex_);
        for (auto &channel : chained_)
            check(comm_group_set_timeout(channel.group, limit_of(timeout)));
        options_->timeout = timeout;
    }

    void abort()
    {
        abort_for("Backend.abort");
    }

    void abort_for(const char *reason)
    {
        comm_group_abort(open(), reason);
        std::lock_guard<std::mutex> lock(chained_mutex_);
        for (auto &channel : chained_)
            comm_group_abort(channel.group, reason);
    }

    void shutdown()
    {
        close();
    }

    void setSequenceNumberForGroup() override
    {
    }

    uint64_t getSequenceNumberForGroup() override
    {
        return comm_group_seq(open());
    }

    /* A group of these ranks, of which this one is one; no rank is waited for. `backend` is libcomm's; NULL: this
     * group's. */
    intrusive_ptr<Backend> subgroup(const std::vector<int32_t> &ranks, const std::string &name, int64_t timeout_ms,
                                    const char *backend = nullptr)
    {
        std::string world_name = fitting(name);
        comm_group_options options = COMM_GROUP_OPTIONS_INIT;
        options.backend = backend;
        options.timeout_ms = timeout_ms;
        options.name = world_name.c_str();
        comm_group *group;
        check(comm_group_create(open(), ranks.data(), ranks.size(), &options, &group), timeout_ms);
        return c10::make_intrusive<CommBackend>(group, store_, name);
    }

    intrusive_ptr<Backend> split(const intrusive_ptr<c10d::Store> &, const std::vector<int> &ranks,
                                 const intrusive_ptr<Options> &options)
    {
        if (std::find(ranks.begin(), ranks.end(), rank_) == ranks.end())
            return nullptr;
        std::string name = options ? name_of(*options, 0) : "";
        return subgroup(std::vector<int32_t>(ranks.begin(), ranks.end()), name.empty() ? name_ + ":split" : name,
                        options ? limit_of(options->timeout) : 0);
    }

    intrusive_ptr<Backend> shrink(const std::vector<int64_t> &excluded, int, const intrusive_ptr<Options> &)
    {
        comm_group *group;
        check(comm_group_shrink(open(), std::vector<int32_t>(excluded.begin(), excluded.end()).data(), excluded.size(),
                                nullptr, &group));
        return c10::make_intrusive<CommBackend>(group, store_, name_ + ":shrunk");
    }

    /* ---- Collectives ---- */

    WorkPointer broadcast(Tensors &tensors, const c10d::BroadcastOptions &given) override
    {
        Job job { c10d::OpType::BROADCAST, "libcomm:broadcast", tensors };
        Call call(given);
        Tensor piece = flat(only(tensors), job, Use::IN_PLACE);
        return submit(std::move(job), call, tensors, [&](comm_group *group, comm_work **work) {
            return comm_broadcast(group, piece.data_ptr(), piece.numel(), dtype_of(piece),
                                  static_cast<int32_t>(given.rootRank), &call.options, work);
        });
    }

    WorkPointer allreduce(Tensors &tensors, const c10d::AllreduceOptions &given) override
    {
        if (only(tensors).is_sparse())
            return allreduce_sparse(tensors, given);
        Job job { c10d::OpType::ALLREDUCE, "libcomm:all_reduce", tensors };
        Call call(given);
        Tensor piece = flat(tensors[0], job, Use::IN_PLACE);
        comm_redop redop = redop_of(given.reduceOp, piece, call, job);
        return submit(std::move(job), call, tensors, [&](comm_group *group, comm_work **work) {
            return comm_all_reduce(group, piece.data_ptr(), piece.data_ptr(), piece.numel(), dtype_of(piece), redop,
                                   &call.options, work);
        });
    }

    /* The union of all ranks' indices. It waits: how much comes is known only when the others have said it. */
    WorkPointer allreduce_sparse(Tensors &tensors, const c10d::AllreduceOptions &given)
    {
        if (given.reduceOp.op_ != c10d::ReduceOp::SUM)
            throw std::runtime_error("libcomm: sparse tensors can only be summed");
        auto work = new_work({ c10d::OpType::ALLREDUCE, "libcomm:sparse_all_reduce", tensors }, tensors);
        Checks checks = checks_of("all_reduce");
        Tensor own = only(tensors).coalesce();
        Tensor own_indices = own.indices().contiguous(), own_values = own.values().contiguous();
        SparseForm mine(checks, own);
        Tensors told, indices, values;
        for (int r = 0; r < size_; r++)
            told.push_back(at::zeros({ static_cast<int64_t>(mine.numbers.size()) }, at::kLong));
        gather_all(told, at::tensor(mine.numbers, at::kLong));
        for (int r = 0; r < size_; r++)
            if (SparseForm theirs(told[r]); !theirs.fits(mine))
                checks.refuse("the sparse tensor of rank " + std::to_string(r) + " has " + theirs.words() +
                              ", that of this rank " + mine.words() + "; they must be equal");
        for (int r = 0; r < size_; r++) {
            int64_t number = told[r][0].item<int64_t>();
            auto shape = own_values.sizes().vec();
            shape[0] = number;
            indices.push_back(at::empty({ own.sparse_dim(), number }, at::kLong));
            values.push_back(at::empty(shape, own_values.options()));
        }
        gather_all(indices, own_indices);
        gather_all(values, own_values);
        Tensor total = at::sparse_coo_tensor(at::cat(indices, 1), at::cat(values), own.sizes(), own.options());
        at::NoGradGuard no_grad;
        tensors[0].copy_(total.coalesce());
        work->conclude();
        return work;
    }

    WorkPointer allreduce_coalesced(Tensors &tensors, const c10d::AllreduceCoalescedOptions &given) override
    {
        return together(given, { c10d::OpType::ALLREDUCE_COALESCED, "libcomm:all_reduce", tensors }, tensors, [&] {
            for (Tensor &tensor : tensors) {
                Tensors one = { tensor };
                allreduce(one, given);
            }
        });
    }

    WorkPointer reduce(Tensors &tensors, const c10d::ReduceOptions &given) override
    {
        Job job { c10d::OpType::REDUCE, "libcomm:reduce", tensors };
        Call call(given);
        Tensor piece = flat(only(tensors), job, given.rootRank == rank_ ? Use::IN_PLACE : Use::READ);
        comm_redop redop = redop_of(given.reduceOp, piece, call, job);
        return submit(std::move(job), call, tensors, [&](comm_group *group, comm_work **work) {
            return comm_reduce(group, piece.data_ptr(), piece.data_ptr(), piece.numel(), dtype_of(piece), redop,
                               static_cast<int32_t>(given.rootRank), &call.options, work);
        });
    }

    WorkPointer allgather(Lists &outputs, Tensors &inputs, const c10d::AllgatherOptions &given) override
    {
        Job job { c10d::OpType::ALLGATHER, "libcomm:all_gather", {}, outputs };
        Call call(given);
        Checks checks = checks_of("all_gather");
        const Tensors &targets = checks.only_list("output", outputs);
        checks.list("output", targets, "input", only(inputs));
        Tensor piece = flat(only(inputs), job, Use::READ);
        List list(targets, job, Use::WRITTEN);
        return submit(std::move(job), call, inputs, [&](comm_group *group, comm_work **work) {
            return comm_all_gather_list(group, piece.data_ptr(), list.addresses.data(), list.counts.data(),
                                        dtype_of(piece), &call.options, work);
        });
    }

    /* outputs: by rank, then by tensor. */
    WorkPointer allgather_coalesced(Lists &outputs, Tensors &inputs, const c10d::AllgatherOptions &given) override
    {
        Checks checks = checks_of("all_gather_coalesced");
        checks.length("output", outputs);
        for (const Tensors &of_rank : outputs)
            checks.as_many("output", of_rank, "input", inputs);
        return together(given, { c10d::OpType::ALLGATHER_COALESCED, "libcomm:all_gather", {}, outputs }, inputs, [&] {
            for (size_t i = 0; i < inputs.size(); i++) {
                Lists list(1);
                Tensors one = { inputs[i] };
                for (Tensors &of_rank : outputs)
                    list[0].push_back(of_rank[i]);
                allgather(list, one, given);
            }
        });
    }

    WorkPointer _allgather_base(Tensor &output, Tensor &input, const c10d::AllgatherOptions &given)
    {
        Job job { c10d::OpType::_ALLGATHER_BASE, "libcomm:_all_gather_base", { output } };
        Call call(given);
        checks_of("all_gather_into_tensor").whole("output", output, "input", input);
        Tensor piece = flat(input, job, Use::READ), target = flat(output, job, Use::WRITTEN);
        return submit(std::move(job), call, { input }, [&](comm_group *group, comm_work **work) {
            return comm_all_gather(group, piece.data_ptr(), target.data_ptr(), piece.numel(), dtype_of(piece),
                                   &call.options, work);
        });
    }

    WorkPointer allgather_into_tensor_coalesced(Tensors &outputs, Tensors &inputs, const c10d::AllgatherOptions &given)
    {
        checks_of("all_gather_into_tensor").as_many("output", outputs, "input", inputs);
        return together(given, { c10d::OpType::COALESCED, "libcomm:all_gather", outputs }, inputs, [&] {
            for (size_t i = 0; i < inputs.size(); i++)
                _allgather_base(outputs[i], inputs[i], given);
        });
    }

    WorkPointer gather(Lists &outputs, Tensors &inputs, const c10d::GatherOptions &given) override
    {
        Job job { c10d::OpType::GATHER, "libcomm:gather", {}, outputs };
        Call call(given);
        Tensors targets;
        if (given.rootRank == rank_) {
            Checks checks = checks_of("gather");
            targets = checks.only_list("output", outputs);
            checks.list("output", targets, "input", only(inputs));
        }
        Tensor piece = flat(only(inputs), job, Use::READ);
        List list(targets, job, Use::WRITTEN);
        return submit(std::move(job), call, inputs, [&](comm_group *group, comm_work **work) {
            return comm_gather_list(group, piece.data_ptr(), piece.numel(),
                                    list.addresses.empty() ? nullptr : list.addresses.data(), list.counts.data(),
                                    dtype_of(piece), static_cast<int32_t>(given.rootRank), &call.options, work);
        });
    }

    WorkPointer gather_single(Tensor &output, Tensor &input, const c10d::GatherOptions &given)
    {
        Job job { c10d::OpType::GATHER, "libcomm:gather", { output } };
        Call call(given);
        Tensor piece = flat(input, job, Use::READ), target;
        if (given.rootRank == rank_) {
            Checks checks = checks_of("gather_single");
            if (!output.defined())
                checks.refuse("the root needs an output");
            checks.whole("output", output, "input", input);
            target = flat(output, job, Use::WRITTEN);
        }
        return submit(std::move(job), call, { input }, [&](comm_group *group, comm_work **work) {
            return comm_gather(group, piece.data_ptr(), target.defined() ? target.data_ptr() : nullptr, piece.numel(),
                               dtype_of(piece), static_cast<int32_t>(given.rootRank), &call.options, work);
        });
    }

    WorkPointer gather_into_tensor(Tensor &output, Tensor &input, const c10d::GatherOptions &given)
    {
        return gather_single(output, input, given);
    }

    WorkPointer scatter(Tensors &outputs, Lists &inputs, const c10d::ScatterOptions &given) override
    {
        Job job { c10d::OpType::SCATTER, "libcomm:scatter", outputs };
        Call call(given);
        Tensors pieces;
        if (given.rootRank == rank_) {
            Checks checks = checks_of("scatter");
            pieces = checks.only_list("input", inputs);
            checks.list("input", pieces, "output", only(outputs));
        }
        Tensor target = flat(only(outputs), job, Use::WRITTEN);
        List list(pieces, job, Use::READ);
        return submit(std::move(job), call, outputs, [&](comm_group *group, comm_work **work) {
            return comm_scatter_list(group, list.addresses.empty() ? nullptr : list.addresses.data(),
                                     list.counts.data(), target.data_ptr(), target.numel(), dtype_of(target),
                                     static_cast<int32_t>(given.rootRank), &call.options, work);
        });
    }

    WorkPointer reduce_scatter(Tensors &outputs, Lists &inputs, const c10d::ReduceScatterOptions &given) override
    {
        Job job { c10d::OpType::REDUCE_SCATTER, "libcomm:reduce_scatter", outputs };
        Call call(given);
        Checks checks = checks_of("reduce_scatter");
        const Tensors &pieces = checks.only_list("input", inputs);
        checks.list("input", pieces, "output", only(outputs));
        Tensor target = flat(only(outputs), job, Use::WRITTEN);
        List list(pieces, job, Use::READ);
        comm_redop redop = redop_of(given.reduceOp, target, call, job);
        return submit(std::move(job), call, outputs, [&](comm_group *group, comm_work **work) {
            return comm_reduce_scatter_list(group, list.addresses.data(), target.data_ptr(), list.counts.data(),
                                            dtype_of(target), redop, &call.options, work);
        });
    }

    WorkPointer _reduce_scatter_base(Tensor &output, Tensor &input, const c10d::ReduceScatterOptions &given)
    {
        Job job { c10d::OpType::_REDUCE_SCATTER_BASE, "libcomm:_reduce_scatter_base", { output } };
        Call call(given);
        checks_of("reduce_scatter_tensor").whole("input", input, "output", output);
        Tensor target = flat(output, job, Use::WRITTEN), piece = flat(input, job, Use::READ);
        comm_redop redop = redop_of(given.reduceOp, target, call, job);
        return submit(std::move(job), call, { input }, [&](comm_group *group, comm_work **work) {
            return comm_reduce_scatter(group, piece.data_ptr(), target.data_ptr(), target.numel(), dtype_of(target),
                                       redop, &call.options, work);
        });
    }

    WorkPointer reduce_scatter_tensor_coalesced(Tensors &outputs, Tensors &inputs,
                                                const c10d::ReduceScatterOptions &given)
    {
        checks_of("reduce_scatter_tensor").as_many("output", outputs, "input", inputs);
        return together(given, { c10d::OpType::COALESCED, "libcomm:reduce_scatter", outputs }, inputs, [&] {
            for (size_t i = 0; i < inputs.size(); i++)
                _reduce_scatter_base(outputs[i], inputs[i], given);
        });
    }

    WorkPointer alltoall(Tensors &outputs, Tensors &inputs, const c10d::AllToAllOptions &given) override
    {
        Job job { c10d::OpType::ALLTOALL, "libcomm:all_to_all", outputs };
        Call call(given);
        Checks checks = checks_of("all_to_all");
        checks.length("input", inputs);
        checks.list("output", outputs, "input for this rank", inputs[rank_]);
        checks.list("input", inputs, "output for this rank", outputs[rank_]);
        List sent(inputs, job, Use::READ), received(outputs, job, Use::WRITTEN);
        comm_dtype dtype = dtype_of(inputs[0]);
        return submit(std::move(job), call, inputs, [&](comm_group *group, comm_work **work) {
            return comm_all_to_all_list(group, sent.addresses.data(), sent.counts.data(), received.addresses.data(),
                                        received.counts.data(), dtype, &call.options, work);
        });
    }

    WorkPointer alltoall_base(Tensor &output, Tensor &input, std::vector<int64_t> &output_splits,
                              std::vector<int64_t> &input_splits, const c10d::AllToAllOptions &given)
    {
        Job job { c10d::OpType::ALLTOALL_BASE, "libcomm:all_to_all", { output } };
        Call call(given);
        Checks checks = checks_of("all_to_all_single");
        checks.type("output", output, "input", input);
        std::vector<size_t> sent = checks.splits("input", input, input_splits);
        std::vector<size_t> received = checks.splits("output", output, output_splits);
        if (sent[rank_] != received[rank_])
            checks.refuse("the input has " + number_of(sent[rank_], "element") + " for rank " + std::to_string(rank_) +
                          ", this one, and the output " + std::to_string(received[rank_]) + "; they must be equal");
        Tensor target = flat(output, job, Use::WRITTEN), piece = flat(input, job, Use::READ);
        return submit(std::move(job), call, { input }, [&](comm_group *group, comm_work **work) {
            return comm_all_to_all_v(group, piece.data_ptr(), sent.data(), nullptr, target.data_ptr(), received.data(),
                                     nullptr, dtype_of(piece), &call.options, work);
        });
    }

    /* The names of newer releases. */
    WorkPointer all_gather_single(Tensor &output, Tensor &input, const c10d::AllgatherOptions &given)
    {
        return _allgather_base(output, input, given);
    }
    WorkPointer all_gather_single_coalesced(Tensors &outputs, Tensors &inputs, const c10d::AllgatherOptions &given)
    {
        return allgather_into_tensor_coalesced(outputs, inputs, given);
    }
    WorkPointer reduce_scatter_single(Tensor &output, Tensor &input, const c10d::ReduceScatterOptions &given)
    {
        return _reduce_scatter_base(output, input, given);
    }
    WorkPointer reduce_scatter_single_coalesced(Tensors &outputs, Tensors &inputs,
                                                const c10d::ReduceScatterOptions &given)
    {
        return reduce_scatter_tensor_coalesced(outputs, inputs, given);
    }
    WorkPointer all_to_all_single(Tensor &output, Tensor &input, std::vector<int64_t> &output_splits,
                                  std::vector<int64_t> &input_splits, const c10d::AllToAllOptions &given)
    {
        return alltoall_base(output, input, output_splits, input_splits, given);
    }

    WorkPointer barrier(const c10d::BarrierOptions &given) override
    {
        Call call(given);
        return submit({ c10d::OpType::BARRIER, "libcomm:barrier" }, call, {}, [&](comm_group *group, comm_work **work) {
            return comm_barrier(group, &call.options, work);
        });
    }

    void monitoredBarrier(const c10d::BarrierOptions &given, bool wait_all) override
    {
        Call call(given);
        comm_group *group = channel(true).group;
        comm_status status = Interrupts::interruptible(
            group, [&] { return comm_monitored_barrier(group, &call.options); });
        if (status == COMM_OK)
            return;
        std::string text = comm_last_error();
        check_signals();
        if (status != COMM_ERR_TIMEOUT)
            throw failure(status, text);
        std::string limit = std::to_string(std::max<int64_t>(given.timeout.count(), 0));
        if (rank_ != 0)
            throw std::runtime_error("Rank " + std::to_string(rank_) +
                                     " successfully reached monitoredBarrier, but received errors while waiting for "
                                     "send/recv from rank 0: " + text);
        if (given.timeout.count() == 0)
            throw std::runtime_error("Rank 0 timed out in monitoredBarrier after 0 ms: " + text);
        /* libcomm's text ends with "ms: 1 (world rank 4), 2 (world rank 5)". */
        std::string missing = text.substr(text.rfind(" ms: ") + 5), ranks;
        static const std::regex number("(?:^|, )([0-9]+)");
        int found = 0;
        for (std::sregex_iterator one(missing.begin(), missing.end(), number), end; one != end; ++one)
            if (found++ == 0 || wait_all)
                ranks += (ranks.empty() ? "" : ", ") + one->str(1);
        throw std::runtime_error("[Rank 0]: Rank" + std::string(wait_all && found > 1 ? "s " : " ") + ranks +
                                 " failed to pass monitoredBarrier in " + limit + " ms: " + text);
    }

    /* ---- Point-to-point ---- */

    WorkPointer send(Tensors &tensors, int peer, int tag) override
    {
        Job job { c10d::OpType::SEND, "libcomm:send" };
        Call call;
        call.options.tag = tag;
        Tensor piece = flat(only(tensors), job, Use::READ);
        return submit(std::move(job), call, tensors, [&](comm_group *group, comm_work **work) {
            return comm_send(group, piece.data_ptr(), piece.numel(), dtype_of(piece), peer, &call.options, work);
        });
    }

    WorkPointer recv(Tensors &tensors, int peer, int tag) override
    {
        return receive(tensors, peer, tag, c10d::OpType::RECV, "libcomm:recv");
    }

    WorkPointer recvAnysource(Tensors &tensors, int tag) override
    {
        return receive(tensors, COMM_ANY_SOURCE, tag, c10d::OpType::RECVANYSOURCE, "libcomm:recvAnySource");
    }

    /* ---- Coalescing ---- */

    void startCoalescing()
    {
        begin_batch({ c10d::OpType::COALESCED, "libcomm:coalesced" }, {});
    }

    WorkPointer endCoalescing()
    {
        Channel &on = channel(true);
        intrusive_ptr<CommWork> batch = std::move(on.batch);
        on.batch_thread = std::thread::id();
        comm_work *work;
        check(comm_coalesce_end(on.group, nullptr, &work));
        batch->begun(work);
        return batch;
    }

private:
    Checks checks_of(const char *call) const
    {
        return { call, rank_, size_ };
    }

    comm_group *open() const
    {
        if (!first_.group)
            throw std::runtime_error("libcomm: the process group '" + name_ + "' has been destroyed");
        return first_.group;
    }

    /* Where this thread's operations go. A peer may call the other half of a send or receive on another level. */
    Channel &channel(bool collective)
    {
        open();
        if (thread_level == 0)
            return first_;
        Channel &own = chained(thread_level);
        return collective || own.in_batch() ? own : first_;
    }

    Channel &chained(size_t level)
    {
        std::lock_guard<std::mutex> lock(chained_mutex_);
        while (chained_.size() < level) {
            comm_group *group;
            check(comm_group_dup(chained_.empty() ? first_.group : chained_.back().group, nullptr, &group));
            chained_.emplace_back(group);
        }
        return chained_[level - 1];
    }

    /* Profilers are told its title and inputs. */
    intrusive_ptr<CommWork> new_work(Job job, const Tensors &inputs) const
    {
        bool profiled = at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE).has_value();
        const char *title = profiled ? job.title : nullptr;
        return c10::make_intrusive<CommWork>(rank_, std::move(job), title, profiled ? inputs : Tensors(),
                                             reinterpret_cast<uintptr_t>(this));
    }

    /* Inside a batch no work is given: the batch's stands for all. */
    template <class Function>
    WorkPointer submit(Job job, const Call &call, const Tensors &inputs, Function function)
    {
        Channel &on = channel(call.collective);
        comm_group *group = on.group;
        if (on.in_batch()) {
            check(function(group, nullptr));
            on.batch->add(std::move(job));
            return on.batch;
        }
        auto made = new_work(std::move(job), inputs);
        if (call.wait) {
            wait_for(group, call.options.timeout_ms, [&] { return function(group, nullptr); });
            made->done();
            return made;
        }
        comm_work *work;
        check(function(group, &work));
        made->begun(work);
        return made;
    }

    /* Call a function of libcomm's that waits. */
    template <class Function> static void wait_for(comm_group *group, int64_t timeout_ms, Function function)
    {
        comm_status status = Interrupts::interruptible(group, function);
        if (status == COMM_OK)
            return;
        auto error = failure(status, comm_last_error(), timeout_ms ? timeout_ms : comm_group_timeout(group));
        check_signals();
        throw error;
    }

    void begin_batch(Job job, const Tensors &inputs)
    {
        Channel &on = channel(true);
        check(comm_coalesce_begin(on.group));
        on.batch = new_work(std::move(job), inputs);
        on.batch->open();
        on.batch_thread = std::this_thread::get_id();
    }

    /* The calls as one batch, or as a part of the one that is open. */
    template <class Options, class Calls>
    WorkPointer together(const Options &given, Job job, const Tensors &inputs, Calls calls)
    {
        Channel &on = channel(true);
        if (on.in_batch()) {
            calls();
            return on.batch;
        }
        begin_batch(std::move(job), inputs);
        try {
            calls();
        } catch (...) {
            comm_coalesce_cancel(on.group);
            on.batch.reset();
            on.batch_thread = std::thread::id();
            throw;
        }
        WorkPointer batch = endCoalescing();
        if (waits(given, 0))
            batch->wait(milliseconds(0));
        return batch;
    }

    WorkPointer receive(Tensors &tensors, int peer, int tag, c10d::OpType type, const char *title)
    {
        Job job { type, title, tensors };
        Call call;
        call.options.tag = tag;
        Tensor piece = flat(only(tensors), job, Use::WRITTEN);
        return submit(std::move(job), call, tensors, [&](comm_group *group, comm_work **work) {
            return comm_recv(group, piece.data_ptr(), piece.numel(), dtype_of(piece), peer, &call.options, work);
        });
    }

    void gather_all(Tensors &outputs, const Tensor &input)
    {
        Job job {};
        List list(outputs, job, Use::WRITTEN);
        comm_group *group = channel(true).group;
        wait_for(group, 0, [&] {
            return comm_all_gather_list(group, input.data_ptr(), list.addresses.data(), list.counts.data(),
                                        dtype_of(input), nullptr, nullptr);
        });
    }

    Channel first_;
    std::mutex chained_mutex_;
    std::deque<Channel> chained_; /* by level, from 1 on */
    std::shared_ptr<comm_store> store_; /* the groups of a world keep it, as each of them may be the last one */
    std::string name_;
    intrusive_ptr<Options> options_;
};

/* Of ranks of the parent, if that is one of ours; else a world of its own. */
intrusive_ptr<c10d::Backend> create(const intrusive_ptr<c10d::Store> &store, int rank, int size, int64_t timeout_ms,
                                    const std::string &name, const std::string &world_name, const std::string &backend,
                                    const intrusive_ptr<c10d::Backend> &parent, const std::vector<int32_t> &ranks)
{
    auto *from = dynamic_cast<CommBackend *>(parent.get());
    if (from && from->is_open())
        return from->subgroup(ranks, name, timeout_ms, backend.c_str());
    std::shared_ptr<comm_store> ours(TorchStore::open(store), comm_store_close);
    comm_init_options options = COMM_INIT_OPTIONS_INIT;
    options.world_size = size;
    options.rank = rank;
    options.backend = backend.c_str();
    options.store = ours.get();
    options.timeout_ms = timeout_ms;
    options.name = world_name.c_str();
    comm_group *group;
    check(comm_init(&options, &group), timeout_ms);
    return c10::make_intrusive<CommBackend>(group, ours, name);
}

/* ---- Tensors that are negated or conjugated when they are read ---- */

/* Whether an operation of c10d's, whose arguments these are, is one of a group of ours. */
bool ours(const torch::jit::Stack &arguments)
{
    auto type = c10::getCustomClassType<intrusive_ptr<c10d::ProcessGroup>>();
    for (const at::IValue &value : arguments)
        if (value.isObject() && *value.type() == *type)
            try {
                auto group = value.toCustomClass<c10d::ProcessGroup>();
                return dynamic_cast<CommBackend *>(group->getBackend(at::kCPU).get()) != nullptr;
            } catch (const std::exception &) { /* it has none for the CPU */
                return false;
            }
    return false;
}

Tensor resolved(const Tensor &tensor)
{
    return tensor.resolve_conj().resolve_neg();
}

/* PyTorch hands a copy of such a tensor to backends, and what they write there is lost. Ours get the tensor itself, and
 * see to the rest (flat). Others get what they did before. */
template <c10::DispatchKey key>
void pass_lazy(const c10::OperatorHandle &operation, c10::DispatchKeySet keys, torch::jit::Stack *arguments)
{
    bool kept = ours(*arguments);
    for (at::IValue &value : *arguments) {
        if (!kept && value.isTensor() && value.toTensor().defined()) {
            value = resolved(value.toTensor());
        } else if (!kept && value.isTensorList()) {
            c10::List<Tensor> list;
            for (const Tensor &tensor : value.toTensorVector())
                list.push_back(resolved(tensor));
            value = list;
        }
    }
    operation.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, key), arguments);
}

template <c10::DispatchKey key> void pass_lazy_for_all()
{
    static torch::Library library(torch::Library::IMPL, "c10d", key, __FILE__, __LINE__);
    for (const c10::OperatorName &name : c10::Dispatcher::singleton().getAllOpNames())
        if (name.name.rfind("c10d::", 0) == 0)
            library.impl(name.overload_name.empty() ? name.name.c_str() : c10::toString(name).c_str(),
                         torch::CppFunction::makeFromBoxedFunction<&pass_lazy<key>>());
}

/* The others are told of the reason, if there is one. */
void close_all(const std::string &reason)
{
    if (!reason.empty()) {
        std::lock_guard<std::mutex> lock(backends_mutex);
        for (CommBackend *one : backends)
            one->abort_for(reason.c_str());
    }
    for (;;) {
        CommBackend *one;
        {
            std::lock_guard<std::mutex> lock(backends_mutex);
            if (backends.empty())
                return;
            one = *backends.begin();
        }
        one->close();
    }
}

} // namespace

PYBIND11_MODULE(torch_libcomm_native, module)
{
    /* futures.py gives it a get_future. */
    py::class_<CommWork, c10d::Work, intrusive_ptr<CommWork>>(module, "Work")
        .def_property_readonly("group", &CommWork::group)
        .def_property_readonly("collective", &CommWork::collective);
    module.def("set_thread_level", [](size_t level) { thread_level = level; });
    pthread_atfork(nullptr, nullptr, begin_again_in_child);
    pass_lazy_for_all<c10::DispatchKey::Negative>();
    pass_lazy_for_all<c10::DispatchKey::Conjugate>();
    module.def("listen_to_interrupts", &Interrupts::listen);
    module.def("create", &create, py::call_guard<py::gil_scoped_release>());
    module.def("close_all", &close_all, py::call_guard<py::gil_scoped_release>());
}
