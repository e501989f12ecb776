// Messages from rank to rank: the interface of a transport (messages_mpi.cpp between processes,
// thread_messages.h between threads). comm.h builds collectives on it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace mr::comm {

class Messages {
  public:
    // A message in flight. Its memory must stay untouched until done() has returned true, or
    // forget() has returned. The memory of a send that was forgotten may be read even later.
    using Transfer = std::int64_t;

    virtual ~Messages() = default;
    virtual int rank() const = 0;
    virtual int size() const = 0;
    // Both return at once. Messages between two ranks arrive in the order in which they were sent;
    // the receiver asks for exactly as many bytes as the sender sends.
    virtual Transfer send(int to, std::span<const std::byte> data) = 0;
    virtual Transfer receive(int from, std::span<std::byte> data) = 0;
    // True exactly once; then the transfer is forgotten.
    virtual bool done(Transfer transfer) = 0;
    // Gives up a transfer after a failure: a message that arrives late must not be written into
    // memory that has another use by then. Does not wait for the other rank.
    virtual void forget(Transfer transfer) = 0;
    // The same interface among `ranks`, this one included, numbered by their place there: a
    // separate channel that shares no messages with others. All of them pass the same unused number
    // (1 or more). Different channels may be used by different threads at the same time.
    virtual std::unique_ptr<Messages> channel(std::span<const int> ranks, int number) = 0;
    // A message had another size than expected: the ranks are out of step.
    virtual bool out_of_step() const { return false; }
    // Ends all ranks at once, this one included: the job is lost.
    [[noreturn]] virtual void abort(int exit_code) = 0;
};

}  // namespace mr::comm
