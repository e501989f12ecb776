// Messages from rank to rank: all that a way of sending has to offer (messages_mpi.cpp between
// processes, thread_messages.h between threads). comm.h makes collectives of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace mr::comm {

class Messages {
  public:
    // A message on its way. Its memory is the message's until done() has returned true.
    using Transfer = std::int64_t;

    virtual ~Messages() = default;
    virtual int rank() const = 0;
    virtual int size() const = 0;
    // Both return at once. Messages between two ranks arrive in the order in which they were sent;
    // the receiver asks for as many bytes as the sender has given.
    virtual Transfer send(int to, std::span<const std::byte> data) = 0;
    virtual Transfer receive(int from, std::span<std::byte> data) = 0;
    // True once; then the transfer is forgotten.
    virtual bool done(Transfer transfer) = 0;
    // The same among `ranks`, of which this is one, numbered as they stand there: a channel of its
    // own, whose messages meet no others. All of them give the same number, from 1, of a channel
    // that none of them has yet. Different channels may be used by different threads at a time.
    virtual std::unique_ptr<Messages> channel(std::span<const int> ranks, int number) = 0;
    // A message had another size than was asked for: ranks do not do the same.
    virtual bool out_of_step() const { return false; }
    // Ends all ranks at once, this one included: the job is lost.
    [[noreturn]] virtual void abort(int exit_code) = 0;
};

}  // namespace mr::comm
